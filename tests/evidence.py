"""What a run of two ranks on two nodes left behind, as the verdict reads it."""

from __future__ import annotations

from serried.agent.outcome.checkpoint_progress import Saved
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, AttemptEvidence
from serried.schema.endings import NodeEnded, entries


def exit_of(rank, code=0, *, signal=None, seconds=1.0, ours=False, **more):
    return {
        "rank": rank,
        "local_rank": rank % 2,
        "exit_code": None if signal else code,
        "signal": signal,
        "seconds": seconds,
        "ended_by_us": ours,
        **more,
    }


def event(name, **facts):
    return {"t": 1.0, "event": name, **facts}


CONNECTED = [event("connected", node=0, host="n1"), event("connected", node=1, host="n2"), event("go")]
STARTED = [*CONNECTED, event("started", node=0, host="n1"), event("started", node=1, host="n2")]


def stopping(reason, because="x", **facts):
    return event("stopping", reason=reason, because=because, **facts)


def asked(reason, notice=None):
    return event("stopping", reason=reason, because="x", save=True, notice=notice)


def ended(node, *exits, left=()):
    return event("node-ended", node=node, host=f"n{node + 1}", exits=list(exits), left=list(left))


def node_journal(*exits):
    return [event("started", rank=0, local_rank=0, pid=9), *(event("rank-exit", **exit_) for exit_ in exits)]


def evidence(head, *, nodes=None, has_checkpoint=False, obstacle=NO_ATTEMPT_LEFT):
    return AttemptEvidence(
        run="k3f9q2",
        task=None,
        attempt=1,
        job="123",
        host="n1",
        world_size=2,
        started=1_795_000_000.0,
        ended=1_795_000_012.5,
        head=head,
        node_ends=entries(head, "node-ended", NodeEnded),
        nodes=nodes or {},
        saved=Saved(has_checkpoint, 7 if has_checkpoint else None),
        progressed=has_checkpoint,
        obstacle=obstacle,
    )
