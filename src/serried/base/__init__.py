"""Files, processes, channels and texts: what every room above needs of this machine. Python 3.9, standard library.

files, locks, copy, tree, manifest   one writer per file, renamed into place; `flock` on a node's own disk; whole trees
processes, linux, shell              a process is its pid and start time, never its name; `shell` starts processes
channel                              lines of JSON over a socket or a pair of pipes
text, hosts, archives                durations, sizes, ranges and host lists, read and written
errors                               what Serried raises on purpose
startup, breakpoints                 what each Python process of a rank does first

Nothing here knows what a run is. Agents travel with this room, so what it imports is paid at each start of a rank.
Do not touch lightly: the order of write, fsync and rename in `files`. Records survive full and purged disks by it.
"""
