"""Other apps on the same core. None of them imports runner.slurm."""
