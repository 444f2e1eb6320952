"""Mutation tests: the code is changed in one place at a time, and some test must fail each time.

mutmut makes the changes. Its own runner cannot run ours: it finds a changed function by the module's name, and files
under plugins/ are imported by two other names (`ansible.module_utils`, and `runner.slurm.node_rules`, a symbolic link).
So `plugin.py` runs the tests: once to see which test reaches which function, then, for each change, those tests in a
forked process until one fails.
"""
