"""Launchers that start ranks in place of the agents: torchrun, srun, mpirun …

kinds                     the command line of each `launch.kind`, and the variables that identify its ranks
head_side, node_side      the parts of the head and of a node's agent in an attempt with a launcher
processes                 what a node's agent starts: the launcher, and commands that launchers run on other nodes
programs                  what a launcher starts: one rank, and the `ssh` that reaches other nodes
local_socket              the connection between these programs and the agent of their node
rank_identity             rank, world size and environment, from a launcher's variables
"""
