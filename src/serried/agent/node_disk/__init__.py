"""This node's own disk: the folder of each attempt, the files that several jobs share, and their deletion.

<base>/serried-<uid>/                  a room: mode 0700, and this user's alone
  jobs/RUN.TASK.ATTEMPT.NODE.RANDOM/     the folder of one agent, which holds NAME.lock beside it; owner.json says whose
  gone/                                  the trash: folders of no attempt, deleted as time allows
  images/, data/                         shared files, each with a lock beside it
"""
