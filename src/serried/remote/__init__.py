"""From a laptop: the same commands, with the cluster behind ssh.

The laptop sends a command line to the login node, where Serried does the work, and shows its output. Nothing over there
is installed, listens or stays, apart from a request that changes something: that one runs to its end, once.

link, holder              one OpenSSH connection for each cluster
base.frames               what passes between both ends: channels of requests, streams and exit statuses
far_part                  Serried's copy on the login node, which the first connection brings
serve                     the far end: requests, and the environment that they run in
client                    the laptop's end: a request, its output and its exit status, across cuts of the connection

A command on the login node itself never imports this room.
"""
