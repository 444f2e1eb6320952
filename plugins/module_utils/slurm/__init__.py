"""Everything about Slurm: its commands, their output, its configuration and its daemons."""
