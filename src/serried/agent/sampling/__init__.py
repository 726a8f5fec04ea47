"""What the CPUs, GPUs, memory, disks and ranks of a node do, measured every few seconds by a process beside the agent.

node_side    the agent's end: starts the process, reports its ranks to it, forwards samples to the head
worker       the process: measures every few seconds, and writes `samples.jsonl`; a thread waits for the GPUs' driver
usage        CPU, memory, disks and networks of the node and of each rank with its children
gpus         the GPUs of the job, who else uses them, and AMD's driver
nvml         NVIDIA's library
progress     steps, samples and metrics of each rank
"""
