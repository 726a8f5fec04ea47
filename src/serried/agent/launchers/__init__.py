"""Launchers that start the ranks instead of the agents: torchrun, srun, mpirun …

kinds                     what each `launch.kind` runs, where, and how its ranks know themselves
head_side, node_side      the head's part of an attempt with a launcher, and a node agent's
launcher_process          a launcher's process, started by a node agent
rank, remote_shell        programs that a launcher starts: one rank, and the `ssh` that reaches other nodes
listener, local_socket    where these programs reach the agent of their node; `remote_exec` runs their commands
rank_identity             rank, world size and restarts from a launcher's variables
"""
