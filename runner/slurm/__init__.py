"""The Slurm app, pure: the only package that knows Slurm."""
