"""The ranks of one node: their commands and environments, and how they are started, watched and ended.

ranks           the agent's own ranks, and the common part of those that launchers start
command         the process of one rank
binding         its CPUs
side_commands   the commands of `beside`
connections     whether ranks are connected to others
"""
