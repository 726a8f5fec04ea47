"""Plans, records and run directories made by hand, as their writers would have left them."""

from __future__ import annotations

import json
from pathlib import Path

from serried.base.files import Journal, make_directory, write_json
from serried.records.record import Record, Submission
from serried.schema.plan import Allocation, Array, Limit, Plan, ReportSettings, Source, UserScript
from serried.schema.successor_commands import token_of
from stub_scheduler import site_of

CREATED = 1_795_000_000.0
"""2026-11-18T11:06:40Z: when runs made here were created."""


def a_plan(
    run="k3f9q2",
    *,
    root="/nowhere",
    name="train",
    project="digits",
    scheduler="slurm",
    indices=None,
    limit=None,
    data=None,
    beside=(),
    script=None,
    sweep=None,
    metric=None,
    source="/home/ada/digits",
    report=ReportSettings(),  # noqa: B008 - it never changes
    command=("python", "train.py"),
    shares_logs=False,
    **allocation,
):
    sizes = {"nodes": 2, "ranks": 2, "gpus": 0, "cpus": 4, "memory_mb": None, "time_seconds": 3600}
    return Plan(
        run=run,
        name=name,
        project=project,
        experiment="train",
        created="2026-11-18T11:06:40Z",
        command=command,
        site=site_of("fir", scheduler, str(root)),
        allocation=Allocation(**{**sizes, **allocation}),
        source=Source(directory=source),
        array=Array(indices=tuple(indices)) if indices is not None else None,
        limit=limit or Limit(),
        data=data,
        beside=beside,
        script=script,
        sweep=sweep,
        metric=metric,
        report=report,
        shares_logs=shares_logs,
    )


class RunOnDisk:
    """A record with its run directory, filled in step by step."""

    def __init__(self, root: Path, run: str = "k3f9q2", *, job: str | None = "123", **plan) -> None:
        self.plan = a_plan(run, root=root, **plan)
        self.record = Record.create(self.plan)
        self.where = self.record.where
        make_directory(self.where.path)
        if job is not None:
            self.submit("submitted", job=job)

    def submit(self, state, *, job=None, pid=1, started="", number=1, host="", message=None, at="2026-11-18T11:06:41Z"):
        self.record.write_submission(
            Submission(
                token=f"{self.plan.run}-{number}",
                state=state,
                job=job,
                cluster=self.plan.site.name,
                scheduler=self.plan.site.scheduler,
                at=at,
                by_pid=pid,
                by_started=started,
                by_host=host,
                message=message,
            )
        )
        return self

    def link(self, number, job, *, task=None, state="submitted", moved=False):
        """A further job, as the job before it or `serried submit` leaves it."""
        make_directory(self.where.links)
        link = Submission(
            token=token_of(self.plan.run, task, number),
            state=state,
            job=job,
            cluster=self.plan.site.name,
            scheduler=self.plan.site.scheduler,
            at="2026-11-18T11:07:41Z",
            by_pid=1,
            moved=moved,
        )
        self.record.write_submission(link)
        return self

    def attempt(self, number=1, *, task=None, started=CREATED + 60, job=1):
        attempt = self.where.task(task).attempt(number)
        make_directory(attempt.path)
        claim = {"schema": 1, "job": "123", "task": task, "token": f"{self.plan.run}-{job}", "host": "n1"}
        write_json(attempt.claim, {**claim, "started": started, "attempt": number})
        attempt.control.touch()
        return attempt

    def ending(self, state="COMPLETED", *, task=None, number=1, final=True, **changes):
        """exit.json of an attempt, and of its run or task where it is the last."""
        attempt = self.attempt(number, task=task)
        document = an_ending(self.plan.run, state, task=task, number=number, **changes)
        write_json(attempt.exit, document)
        if final:
            write_json(self.where.task(task).exit, {**document, "attempts": number})
        return self

    def journal(self, *entries, node=None, number=1, task=None):
        attempt = self.attempt(number, task=task)
        path = attempt.events if node is None else attempt.node_events(node)
        make_directory(path.parent)
        journal = Journal(path)
        for entry in entries:
            journal.append(entry)
        journal.close()
        return self

    def live(self, document, *, number=1, task=None, started=CREATED + 60):
        """What the head agent of a running attempt writes every few seconds."""
        write_json(self.attempt(number, task=task, started=started).live, document)
        return self

    def log(self, rank, text, *, number=1, task=None, append=False):
        attempt = self.attempt(number, task=task)
        path = attempt.log_of(rank, self.plan.allocation.ranks, is_shared=self.plan.shares_logs)
        make_directory(path.parent)
        with path.open("ab" if append else "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
        return self

    def launch(self, launch, *argv, began=CREATED + 61, call="", within=None, untouched=None, failed=None):
        """A launch of a job script, with the status of a call that failed and whether the script handled that."""
        folder = self.attempt().launches
        if within is not None:
            folder = folder / launch.rpartition(".")[0].replace(".", "/") / f"rank-{within}"
        own = {"call": call or f"n1.1.{launch}", "time": began}
        document = {"launch": launch, "name": argv[0], "argv": list(argv[1:]), "untouched": untouched, **own}
        make_directory(folder)
        write_json(folder / f"{launch.rpartition('.')[2]}.json", document)
        if failed is not None:
            status, handled = failed
            failures = self.attempt().launches / "failures"
            make_directory(failures)
            write_json(failures / f"{launch}.json", {**own, "time": began + 9, "status": status, "handled": handled})
        return self

    def launched(self, launch, ranks, *, node=0, began=CREATED + 62, ends=(0,), text="hello\n"):
        """Ranks of a launch on a node, with logs; each exits with the status of `ends`, or runs if it has none."""
        for rank, status in zip(ranks, [*ends, *ends[-1:] * len(ranks)], strict=False):
            own = {"rank": rank, "local_rank": 0, "launch": launch}
            started = {"t": began, "event": "launched-rank-started", "pid": 1, **own}
            exit_ = {"exit_code": status, "signal": None, "seconds": 8.0, "ended_by_us": False, **own}
            ended = {"t": began + 8, "event": "launched-rank-ended", **exit_}
            self.journal(started, *([ended] if status is not None else []), node=node)
            log = self.attempt().launch_log(node, launch, rank)
            make_directory(log.parent)
            log.write_text(text)
        return self


def live_of(t, *nodes, **facts):
    """live.json of one node with two ranks that train, or of `nodes`."""
    found = nodes or (a_live_node(),)
    ranks = sum(len(node["ranks"]) for node in found)
    gpus = [gpu["busy"] for node in found for gpu in node["gpus"]]
    own = {"schema": 1, "t": t, "interval": 5.0, "limit_seconds_left": 2880.0, "nodes": list(found), "ranks": ranks}
    rates = {"gpus": len(gpus), "samples_per_second": 198.4 * ranks, "warnings": []}
    busy = {"gpu_busy": round(sum(gpus) / len(gpus), 1)} if gpus else {}
    return {**own, **rates, **busy, **facts}


def a_live_node(node=0, *, gpus=(97.0, 91.0), **rank_facts):
    """Ranks that are at step 1200 of 5000; `rank_facts` are those of both."""
    return {
        "node": node,
        "host": f"n{node + 1}",
        "age": 1.3,
        "cpu": 12.4,
        "cpus": 16,
        "memory": 9126805504,
        "memory_limit": 68719476736,
        "memory_scope": "job",
        "gpus": [
            {
                "gpu": at,
                "name": "NVIDIA H200",
                "busy": busy,
                "memory": 120259084288,
                "memory_total": 150754820096,
                "power": 640.0,
                "temperature": 61.0,
            }
            for at, busy in enumerate(gpus)
        ],
        "ranks": [{**_A_LIVE_RANK, "rank": 2 * node + at, **rank_facts} for at in range(2)],
    }


_A_LIVE_RANK = {
    "cpu": 1.0,
    "memory": 4294967296,
    "output_age": 2.0,
    "step": 1200,
    "total_steps": 5000,
    "step_age": 0.4,
    "step_gap": 0.32,
    "steps_per_second": 3.1,
    "samples_per_second": 198.4,
    "data_wait": 0.02,
    "metrics": {"loss": 0.31234, "lr": 0.001},
}

A_SCRIPT = UserScript("/home/ada/digits/train.sbatch", ("/bin/bash",))


def an_ending(run="k3f9q2", state="COMPLETED", *, task=None, number=1, **changes):
    document = {
        "schema": 1,
        "run": run,
        "task": task,
        "attempt": number,
        "job": "123",
        "state": state,
        "exit_code": 0 if state == "COMPLETED" else 1,
        "cause": None if state == "COMPLETED" else "exit",
        "message": "all ranks finished" if state == "COMPLETED" else "rank 3 on n2 exited with status 1",
        "first_failure": None,
        "started": "2026-11-18T11:07:40Z",
        "ended": "2026-11-18T11:17:40Z",
        "seconds": 600.0,
        "nodes": ["n1", "n2"],
        "world_size": 4,
    }
    return {**document, **changes}


def a_failure(rank=3, *, exit_code=1, signal=None, tail=(), **more):
    return {
        "rank": rank,
        "node": 1,
        "host": "n2",
        "local_rank": 1,
        "exit_code": exit_code,
        "signal": signal,
        "seconds": 12.3,
        "tail": list(tail),
        **more,
    }


def as_json(text):
    """The one value on stdout."""
    return json.loads(text)
