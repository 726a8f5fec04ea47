"""This node's own disk: an attempt's folder there, what several jobs share, and what is removed of either, and when.

<base>/serried-<uid>/                  0700, and ours alone
  jobs/RUN.ELEMENT.ATTEMPT.NODE.RANDOM/  of one agent, with owner.json; NAME.lock beside it is held as long as it lives
  gone/                                  nobody's any more: moved here whole, removed as time allows
  images/ …                              shared, each thing with a lock beside it
"""

from serried.agent.node_disk.folder import Folder as Folder
