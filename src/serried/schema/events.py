"""Names of journal events and of messages between head, nodes and the processes beside them, with their fields.

The values are the format on disk and on the wire. Later versions read old journals, so the values of `JournalEvent`
never change. Entries that show how an attempt ended are types in `endings`.
"""

from __future__ import annotations


class JournalEvent:
    """Entries of `events.jsonl`: the head's journal, and one for each node. Every entry has `t` and `event`."""

    # The head's journal.
    CLAIMED = "claimed"  # job, token, host, limit: the head has the attempt.
    LAUNCHING = "launching"  # argv: the head starts the agents. argv, pid: a node starts the launcher of its ranks.
    CONNECTED = "connected"  # node, host: a node agent called the head.
    # resume, nodes: all nodes are ready; `resume` is the checkpoint to load, or None. `nodes` in the order of their
    # ranks, if spare nodes have taken the place of others.
    STARTING_RANKS = "go"
    RANK_FAILED = "rank-failed"  # node, host, exit, tail: a rank failed by itself.
    # node, host, exit, tail: a rank that the user's script launched failed by itself; its exit has `launch`.
    LAUNCHED_RANK_FAILED = "launched-rank-failed"
    # node, host, launch, within, restarts: the launcher started such a rank for the `restarts`-th time again.
    LAUNCHED_RANK_RESTARTED = "launched-rank-restarted"
    # launch, rank, host: the head ends what still runs of a launch after the failure of this rank of it.
    ENDING_LAUNCH = "ending-launch"
    LAUNCHES = "launches"  # `endings.Launches`: what the user's script launched, and its calls that failed.
    NODE_LOST = "node-lost"  # `endings.NodeLost`: a node agent disappeared before it was done.
    SPARE_LOST = "spare-lost"  # The same of a spare node, which had no ranks.
    NODE_ENDED = "node-ended"  # `endings.NodeEnded`: a node agent is done.
    # status, said: the scheduler's launcher of the agents exited; `said` is its last output.
    AGENT_LAUNCHER_EXITED = "launcher-exit"
    LAUNCH_FAILED = "launch-failed"  # message, status: the attempt ended before its ranks started.
    LAUNCHER_FAILED = "starter-failed"  # message, status: the launcher of the ranks failed, and no rank did.
    ENDING_AGENT_LAUNCHER = "ending-launcher"  # The agents' launcher did not exit in time and gets TERM.
    ALL_RANKS_ENDED = "all-over"  # No rank runs on any node; results may still be copied.
    ORPHANED = "orphaned"  # job.sh ended before the head.
    # `endings.RoundBegun`: the ranks start again, in a head's journal; only `round` in a node's.
    ROUND = "round"
    BAD_NODES = "bad-nodes"  # hosts: why each is not used again, by its name. No round follows because of them.
    SUPERSEDED = "superseded"  # A later attempt of the same run has begun.
    # seen: ranks have connected to each other; `seen` is None where a node cannot tell.
    RANKS_CONNECTED = "ranks-in-contact"
    RANKS_UNCONNECTED = "ranks-apart"  # message: ranks have not connected to each other yet.
    # node, host, and the fields of SIDE_COMMAND_EXITED: a command of `beside` failed by itself.
    SIDE_COMMAND_FAILED = "side-command-failed"
    # node, host, gpus: `gpu`, `memory` and `processes` of each GPU that others used when the ranks started.
    GPUS_IN_USE = "gpus-in-use"
    STACKS = "stacks"  # id, nodes: these nodes are to write the stacks of their ranks.
    # part, findings, seconds: checks of the nodes. `part` is `nodes` or `pairs`, and each finding a `checks.Finding`.
    CHECKED = "checked"

    ANOMALY = "anomaly"  # code, message, and ranks or nodes: something unusual, which may have passed since.

    # Both.
    # node, host in the head's journal: all ranks of a node. rank, local_rank, pid in a node's: one rank.
    STARTED = "started"
    STOPPING = "stopping"  # `endings.Stopping`: ranks are to end, or to save first.
    STAGING = "staging"  # bytes, of, files, of_files, rate, left, waits_for, unpacks: progress of the slowest node.
    STAGED = "staged"  # bytes, files, seconds: the data is on the node, or on all nodes.
    LAUNCHER_EXITED = "starter-ended"  # name, status, said, problem: a launcher of ranks exited.
    ENDED = "ended"  # The agent's last entry. Also the last entry of a recovery or a cleanup.

    # A node's journal.
    RANK_EXIT = "rank-exit"  # The fields of an exit: rank, local_rank, exit_code, signal, seconds, ended_by_us.
    LAUNCHED_RANK_STARTED = "launched-rank-started"  # rank, local_rank, pid, launch: a rank of the user's script.
    # The fields of an exit, launch, within, restarts, and needed. `within` is the rank of the outer launch, and
    # `restarts` how often the launcher had started this rank again. `needed`: the other ranks of its launch cannot
    # continue without it.
    LAUNCHED_RANK_ENDED = "launched-rank-ended"
    # because: ranks of the user's script cannot connect to the agent of this node.
    LAUNCHED_RANKS_HAVE_NO_LOGS = "launched-ranks-have-no-logs"
    RANK_RESTARTED = "rank-restarted"  # The fields of an exit: the launcher started this rank again.
    RANK_EXCUSED = "rank-excused"  # The fields of an exit: a failure after which the launcher may start the rank again.
    # index, command, exit_code, signal, seconds, ended_by_us, problem: a command of `beside` exited.
    SIDE_COMMAND_EXITED = "side-command-exited"
    HEAD_LOST = "head-lost"  # The connection to the head ended.
    SWEPT = "swept"  # count, left: processes of the attempt that were ended after its ranks.
    IMAGE = "image"  # bytes, seconds, problem: the copy of the container image on the node's disk.
    ITEM_STAGED = "staged-item"  # item, origin, bytes, files, seconds.
    STAGING_WAITS = "staging-waits"  # item, run: another run is staging the same item.
    STAGING_PROBLEM = "staging-problem"  # item, problem: a warning; staging continues.
    STAGING_ALONE = "staging-alone"  # because: this node reads the source, because the node before it stopped sending.
    STAGING_REFUSED = "staging-refused"  # address, because: a connection that did not prove to be of this attempt.
    STAGE_FAILED = "stage-failed"  # because: the data cannot be had on this node.
    STAGE_OUT_STARTED = "bringing"  # folder, kinds: what is copied from this node.
    STAGE_OUT_PROBLEM = "bring-problem"  # message: a warning; the copy is tried again.
    STAGE_OUT_RESTARTED = "bring-again"  # starts: the process that copies ended and is started again.
    COPIED = "brought"  # kind, names, files, bytes: checkpoints or results that are in the run directory now.
    STAGE_OUT_ENDED = "all-brought"  # missing, torn, unnamed, unwatched, files, bytes, seconds.

    # The journals of a recovery and of a cleanup.
    BEGUN = "begun"  # host: followed by ENDED.


class ItemOrigin:
    SOURCE = "source"
    PEER = "peer"  # The node before it.
    CACHE = "cache"  # The node's own disk.
    IN_PLACE = "in place"  # Not copied: ranks read the source.


class ToAttempt:
    """`request` of a line in control.jsonl, from a command of the user to the head of an attempt."""

    STOP = "stop"  # reason, by, save: end the ranks; with `save` they may save first.
    # id, ranks: have each node write the stacks of these ranks, None for all, as `schema.stacks` says.
    STACKS = "stacks"


class ToNode:
    """`do` of the head's messages to a node agent."""

    HEARTBEAT = "heartbeat"  # The head is alive.
    STAGE = "stage"  # before: the address and port of the node to take data from; None for the source.
    # nodes, hosts, place, left, round, resume: the nodes in the order of their ranks, their hosts, the variables of
    # ranks, the seconds until the job's limit, the number of the round, and the checkpoint to load. Others are spare.
    START_RANKS = "start-ranks"
    STOP = "stop"  # reason, hard, grace: end the ranks, or, without `hard`, ask them to save.
    FINISH = "finish"  # No round follows ROUND_ENDED.
    PUBLISH = "publish"  # The ranks of a round have ended on all nodes: copy complete checkpoints, then PUBLISHED.
    ALL_RANKS_ENDED = "all-ranks-ended"  # No rank runs on any node.
    LAUNCHERS_EXITED = "launchers-exited"  # killed: every launcher exited; whether one was killed.
    RELEASE = "release"  # patience: let launchers see how their ranks ended, and give them so many seconds to exit.
    SCRIPT_STARTED = "script-started"  # host, pid: the user's script runs, on the first node.
    END_LAUNCH = "end-launch"  # launch, grace, because: end the ranks of a launch in the user's script.
    SCRIPT_ENDED = "script-ended"  # exit: the user's script ended; None if it was never started.
    # id, ranks as in ToAttempt.STACKS, script, hang: write their stacks. `script` is the pid of the user's script, or
    # 0. `hang`: ranks seem to hang, and HANG_REPORTS is the answer.
    STACKS = "stacks"
    # id, command: run the command of a launcher on another node; `id` is that node and its count of commands.
    REMOTE_RUN = "remote-run"
    REMOTE_CANCEL = "remote-cancel"  # id: end the command, because the launcher on the other node no longer waits.
    REMOTE_EXITED = "remote-exited"  # id, status: the command exited on another node.
    # peers, port: connect to these nodes by each address, and report what happened. `port`: where ranks will meet on
    # the first node, or 0 for no test. A peer has node, host, port, addresses. Without peers the checks are over.
    CHECK_PEERS = "check-peers"
    # job, ranks, active, place: have the first `active` of `ranks` programs of the node do `job`, a `ProbeJob` of
    # `agent/checks/probe.py`. Without a job they end.
    PROBE = "probe"
    BYE = "bye"  # The attempt is over.


class ToHead:
    """`event` of a node agent's messages to the head."""

    HEARTBEAT = "heartbeat"  # quiet, running, over, patience.
    SAMPLE = "sample"  # The fields of an entry of `nodes` in live.json.
    STAGE_PORT = "stage-port"  # port: where this node serves data; 0 where it does not.
    STAGING = "staging"  # The fields of JournalEvent.STAGING, of this node.
    STAGED = "staged"  # bytes, files, seconds.
    STAGE_FAILED = "stage-failed"  # because.
    STARTED = "started"  # The ranks of this node run.
    # place, address: the first node's variables for the user's script, and where its ranks connect on each node.
    SCRIPT_PLACE = "script-place"
    # exit, tail: a rank that the user's script launched failed by itself.
    LAUNCHED_RANK_FAILED = "launched-rank-failed"
    # launch, within, restarts, as in JournalEvent.LAUNCHED_RANK_RESTARTED.
    LAUNCHED_RANK_RESTARTED = "launched-rank-restarted"
    LAUNCH_RUNS = "launch-runs"  # launch, runs: whether ranks of this launch of the user's script run on this node.
    RANK_STARTED = "rank-started"  # rank: started by a launcher.
    RANK_ENDED = "rank-ended"  # rank, well, taken: `taken` where the launcher ended it unasked.
    FAILED = "failed"  # exit, tail: a rank failed by itself.
    ROUND_ENDED = "round-ended"  # `endings.NodeEnded`, without node and host: the ranks have ended, the agent waits.
    PUBLISHED = "published"  # The answer to PUBLISH: the head may choose the checkpoint to resume from.
    CONTACT = "contact"  # seen: ranks have connected; None where the node cannot tell.
    SIDE_COMMAND_FAILED = "side-command-failed"  # The fields of JournalEvent.SIDE_COMMAND_EXITED.
    GPUS_IN_USE = "gpus-in-use"  # gpus, as in JournalEvent.GPUS_IN_USE.
    LAUNCHER_EXITED = "launcher-exited"  # name, status, said, problem.
    LAUNCHER_PROBLEM = "launcher-problem"  # message: the launcher started ranks other than those of the plan.
    RELAY = "relay"  # to, message: for another node.
    STOP = "stop"  # reason: the scheduler sent TERM to this node.
    ORPHANED = "orphaned"  # The scheduler's process on this node ended.
    NODE_FACTS = "node-facts"  # facts: what the checks of this node saw, as `agent/checks/facts.py` has it.
    PEER_FACTS = "peer-facts"  # facts: what its connections to other nodes saw, likewise.
    # round, results: a `ProbeResult` for each line of the programs. Before the first, ports: reserved for their stores.
    PROBED = "probed"
    HANG_REPORTS = "hang-reports"  # id, ranks: a `RankReport` of `agent/stacks/flight_recorder.py` for each rank.
    DONE = "done"  # `endings.NodeEnded`, without node and host.


class FromLaunched:
    """`event` of the programs that a launcher starts, to the agent of their node: a rank, or an `ssh`."""

    RANK_WAITS = "rank-waits"  # environ: a rank waits for its command; its environment has the launcher's variables.
    # launch, is_detached, environ: a rank of a launch in a job script waits for its log and variables. `is_detached`:
    # the scheduler started it, without the environment of the script. `environ` has only variables that identify it.
    PROGRAM_WAITS = "program-waits"
    # The command may run from now on, even if this program is killed before it can report the pid.
    RANK_STARTING = "rank-starting"
    RANK_STARTED = "rank-started"  # pid.
    # status, problem, signal, oom: the wait status, and the last signal that this program forwarded, or 0.
    RANK_ENDED = "rank-ended"
    RUN_REMOTE = "run-remote"  # host, command: an `ssh` that runs a command on another node.


class ToLaunched:
    """`do` of an agent's messages to the programs that a launcher starts."""

    # argv, environment, directory, log, mode, cpus: the command of a rank. After PROGRAM_WAITS only environment, log,
    # mode and detached. There `environment` has additions alone; `detached` is what a detached rank would inherit.
    RUN = "run"
    REFUSE = "refuse"  # because: the rank is not in the plan, or the host is not a node of the attempt.
    LEAVE = "leave"  # The launcher may see the end of this rank.
    REMOTE_EXITED = "remote-exited"  # status: exit status of the command that an `ssh` ran.


class ToHelper:
    """`do` of an agent's messages to its stage-in and stage-out processes, and to that of the checks."""

    PREPARE = "prepare"  # items, view, shared, has_disk, hashed, limit, key, mark, run, node, serves: what to stage.
    STAGE = "stage"  # before: as in ToNode.STAGE.
    # node, nodes, key, master, disk, root, claim, python, variables, chosen, has_gpus, gpus, mark: look at this node.
    CHECK = "check"
    # has_gpus, gpus, is_shared, is_suspect, claim, ports: wait for the memory of the GPUs, and look at a suspect.
    CHECK_AGAIN = "check-again"
    SERVED = "served"  # No other node needs data from this one.
    RELEASE = "release"  # The ranks have ended.
    HURRY = "hurry"  # The end is near: copy without limits of bandwidth.
    FINISH = "finish"  # trusted, all_trusted, seconds: the ranks have ended; copy the rest.
    PUBLISH = "publish"  # trusted, all_trusted: the ranks have ended and may start again; copy complete checkpoints.
    # trusted: a rank failed, on this node unless `trusted`. Files that ranks were writing then are incomplete.
    DOUBT = "doubt"


class ToSampler:
    """`do` of an agent's messages to its sampler. The answers are messages for the head: SAMPLE, GPUS_IN_USE."""

    # every, node, host, folder, attempt, results, mode, gpus, is_shared, mark, metric: what to measure, and where to
    # write it. `gpus` is the job's list of GPUs: an empty text for none, None for all that the driver shows.
    # `is_shared`: other programs keep the node's CPUs busy too. `mark`, in the environment of the attempt's processes,
    # is None for a sampler that replaces another. `metric` has name and source.
    BEGIN = "begin"
    RANKS = "ranks"  # ranks: the ranks that run on this node, each with rank, pid and log.
    FINISH = "finish"  # The ranks have ended.


class FromStageIn:
    READY = "ready"  # port: where it serves data; 0 where it does not.
    PROGRESS = "progress"  # The fields of JournalEvent.STAGING.
    LOG = "note"  # event and its fields, for the node's journal.
    STAGED = "staged"  # bytes, files, seconds.
    FAILED = "failed"  # because.


class FromStageOut:
    """`event` of the stage-out process; COPIED goes into the node's journal as it is."""

    COPIED = JournalEvent.COPIED
    PROGRESS = "progress"  # moved, files, bytes.
    PROBLEM = "problem"  # message.
    PUBLISHED = "published"  # The answer to PUBLISH.
    FINISHED = "finished"  # The fields of JournalEvent.STAGE_OUT_ENDED.
