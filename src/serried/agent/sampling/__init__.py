"""What the CPUs, GPUs, memory, disks and ranks of a node do, measured every few seconds by a process beside the agent.

node_side    the agent's end: starts the process, reports its ranks to it, forwards samples to the head
worker       the process: measures every few seconds, and writes `samples.jsonl`
periods      many samples as one line
processes    CPU, memory and I/O of each rank with its children
node_usage   CPU, memory, disks and networks of the node
gpu_reader   a thread that waits for the driver of the GPUs
gpu_use      are GPUs of the job in use by others?
gpus         the GPUs of the job, and which source asks their driver
nvml         NVIDIA's library
amdgpu       AMD's driver
"""
