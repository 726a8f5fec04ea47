"""What the CPUs, GPUs, memory, disks and ranks of a node do, measured every few seconds by a process beside the agent.

gpu_use      are GPUs of the job in use by others?
gpus         the GPUs of the job, and which source asks their driver
nvml         NVIDIA's library
nvidia_smi   NVIDIA's command, where the library cannot be loaded
amdgpu       AMD's driver
"""
