"""From a laptop: the same commands, with the cluster behind ssh.

The laptop sends a command line to the login node, where Serried does the work, and shows its output. Nothing over there
is installed, listens or stays.
"""
