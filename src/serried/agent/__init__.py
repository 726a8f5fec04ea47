"""The programs on compute nodes: an agent on each node, and the head agent on the first.

Python 3.9 or later with its standard library, in the run directory as `agent.pyz`. The agents share `plan.json`,
environment variables and the files of `serried.schema.layout` with the rest of Serried.

    head     claims the attempt, starts the node agents, stops them, writes the attempt's journal
    node     starts this node's ranks, reports the first failure, cleans up
    finish   reads the evidence, writes exit.json, prints the next step for job.sh
    sweep    ends processes that a killed agent left on its node
    rank     started by a launcher in place of a rank: gets the rank's command from the node's agent
    launch   in place of a launcher in a job script: starts the real one, with `rank-through` before the program
    rank-through   started by that launcher: runs the program of one rank, and copies its output to a log
    remote   the `ssh` of launchers: runs a command through the agent of another node
    shell    the shell of `serried shell` on a node
    tunnel   connections to a port of the node, for `serried tunnel`

`__main__` has all roles and their modules. Each folder's docstring describes its purpose.
"""
