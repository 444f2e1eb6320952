"""gpuaas-slurm smoke: the edges. What a run does and reports is data, in runner/smoke/ and runner/slurm/smoke.py."""
