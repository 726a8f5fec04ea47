"""Launchers that start ranks in place of the agents, by `launch.kind` or in a job script: torchrun, srun, mpirun …

What enters is the plan's `launch` or `script`; what leaves are ranks with identity, environment and log. The real
launcher always gets the user's options as written: `schema/launchers` knows where the user's program begins.

kinds                     each `launch.kind`: its command line, and identity and environment of its ranks
head_side, node_side      the parts of the head and of a node's agent in an attempt with a launcher
programs                  what a launcher starts: a rank, and the `ssh` that reaches other nodes
local_socket              the connection between these programs and the agent of their node
script                    a job script: its process, and a node's part with the ranks that its launchers start
shell_functions           what leads a script's launchers there: functions of bash, and programs for PATH
interception              in a job script: the real launcher, with a rank program before the user's program
local_srun                in place of a missing srun, such as on a laptop
"""
