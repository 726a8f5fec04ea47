"""What every room above needs of this machine: files, processes, channels, texts. Python 3.9, standard library.

files, locks, copy, tree, manifest   one writer per file, renamed into place; `flock` on a node's own disk; whole trees
processes, linux, shell              a process is its pid and start time, never its name; `shell` starts processes
channel                              lines of JSON over a socket or a pair of pipes
text, hosts                          durations, sizes, ranges and host lists, read and written
archives                             what an archive holds, and its unpacked size
errors                               the exceptions of Serried
startup, breakpoints                 what each Python process of a rank does first

Nothing here knows what a run is. Agents and ranks import this room when they start, so its imports must stay few.
Change with care: the order of write, fsync and rename in `files`, which keeps records intact on a full disk.
"""
