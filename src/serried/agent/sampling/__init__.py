"""What the CPUs, GPUs, memory, disks and ranks of a node do, measured every few seconds by a process beside the agent.

node_side    the agent's end: starts the process, reports its ranks to it, forwards samples to the head
worker       the process: CPUs, memory, disks, networks, and steps and metrics of ranks; it writes `samples.jsonl`
gpus         the GPUs of the job, who else uses them, and AMD's driver
nvml         NVIDIA's library
"""
