"""What runs on a compute node: one process on each, and one more, the head, on the first.

Standard library only, Python 3.9 or later, shipped into the run directory as `agent.pyz`. It meets the
rest of Serried through `plan.json`, environment variables and the files of `serried.protocol.layout`.

    head     claims the attempt, starts the node agents, tells them to stop, keeps the attempt's journal
    node     starts this node's ranks, reports the first that fails, leaves nothing behind
    finish   reads the evidence, writes exit.json, prints what job.sh has to do
    sweep    ends what an agent that was killed has left on its node
    rank     what a launcher starts in a rank's place: asks the node's agent what to run
    remote   the `ssh` of launchers: has the agent of another node run something
    shell    what `serried shell` starts on a node

`__main__` has the others, which those start, and where each is. Each folder has one job, which its docstring says.
"""
