"""Launchers that start the ranks in the agents' stead (torchrun, srun, mpirun …).

kinds/           what each kind of `launch.kind` is: what to run, where, and how its ranks know themselves
head, node       the head's part of an attempt with a launcher, and a node agent's
process          a launcher's process, started by a node agent
rank, remote     programs that a launcher starts: one rank, and the `ssh` that reaches other nodes by us
door, meeting    where these find the agent of their node; `remotes` is what they have it run
identity         who a rank is by what its launcher told it
"""
