"""Launchers that start ranks in place of the agents, by `launch.kind` or in a job script: torchrun, srun, mpirun …

kinds                     the command line of each `launch.kind`, and the variables that identify its ranks
head_side, node_side      the parts of the head and of a node's agent in an attempt with a launcher
programs                  what a launcher starts: one rank, and the `ssh` that reaches other nodes
local_socket              the connection between these programs and the agent of their node
interception              in a job script: the real launcher, with a rank program before the user's program
shell_functions           what leads a script's launchers there: functions of bash, and programs for PATH
command_lines             where the user's program begins on a launcher's command line
passed_through_rank       the rank program in a job script: output goes to the log and on to the launcher
rank_identity             rank, world size and environment, from a launcher's variables
"""
