"""What the CPUs, GPUs, memory, disks and ranks of a node do, measured every few seconds by a process beside the agent.

gpus         the GPUs of the job, and the source that asks their driver
"""
