"""The ranks of one node: what they run and find set, and who starts, watches and ends them.

ranks               the agent's own, and what holds of those that launchers start too
program, command    one rank's words and environment, in the container where there is one
binding, memory     its CPUs; whether the kernel killed it for memory
notice              the signal by which users have it asked to save
horovod, store      where Horovod's meet; `tensorflow` says so to TensorFlow's
"""
