"""Several projects on one cluster: who may submit where. Pure.

`desired.py` turns attachments into the accounting state and the Unix users that the cluster must have; the module
slurm_accounts compares that with what Slurm shows, and changes it (accounting_steps.py).
"""
