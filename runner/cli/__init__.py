"""gpuaas-slurm: the command line."""
