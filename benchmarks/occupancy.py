"""`serried queue` on a large cluster: 5,000 nodes in three partitions, 20,000 jobs, as Slurm prints them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import Figure, Timing, record

from serried.schedulers import occupancy
from serried.schedulers.client import Cache
from serried.schedulers.occupancy import count_gpus
from serried.schedulers.slurm import cluster
from serried.schedulers.slurm.cluster import SEPARATOR

NODES, JOBS, ROUNDS = 5000, 20_000, 7
NOW = 1_795_477_200


def nodes() -> str:
    rows = []
    for number in range(NODES):
        used = number % 5
        for partition, limit in (("short*", "3:00:00"), ("day", "1-00:00:00"), ("week", "7-00:00:00")):
            cpus = f"{used * 12}/{64 - used * 12}/0/64"
            gpus = f"gpu:h100:{used}(IDX:0-{used - 1})" if used else "gpu:h100:0(IDX:N/A)"
            fields = (f"n{number}", partition, "mixed", "mixed", cpus, "gpu:h100:4(S:0-1)", gpus)
            row = (*fields, "515000", "96000", "up", limit)
            rows.append(SEPARATOR.join(row) + SEPARATOR)
    return "\n".join(rows)


def jobs() -> str:
    rows = []
    for number in range(JOBS):
        is_running = number % 3 == 0
        state, reason = ("RUNNING", "None") if is_running else ("PENDING", "Priority")
        tres = f"cpu=16,mem=64G,node=1,billing=16,gres/gpu={number % 4 + 1}"
        index = f"0-{number % 90}%8" if number % 10 == 1 else "N/A"
        fields = (str(1_000_000 + number), index, state, f"user{number % 400}", "short,day", str(number))
        requested = ("1", "16", "1", tres, "N/A", "gres:gpu:h100:2", "N/A", "12:00:00")
        row = (*fields, *requested, str(NOW + number), str(NOW + number + 43200), "normal", reason)
        rows.append(SEPARATOR.join(row) + SEPARATOR)
    return "\n".join(rows)


def timed(what: Callable[[], object]) -> Timing:
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return Timing.of(taken)


def main() -> None:
    texts = {"sinfo": nodes(), "squeue": jobs()}
    read = cluster.read_occupancy(texts, "user7")
    assert (len(read.nodes), len(read.jobs)) == (NODES, JOBS)
    mine = [job for job in read.mine if not job.is_running]

    def advise() -> None:
        count_gpus(read.nodes)
        for job in mine[:5]:
            ahead = read.ahead_of(job)
            read.sooner(occupancy.JobShape.of(job), ahead, NOW)

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "answer.json")
        cache.put((), texts, 1.0)
        size = os.stat(cache.path).st_size  # noqa: PTH116
        cached = timed(cache.last)
    parsed, advised = timed(lambda: cluster.read_occupancy(texts, "user7")), timed(advise)
    record(
        "The queue",
        [
            Figure(
                f"parse {NODES:,} nodes in 3 partitions and {JOBS:,} jobs", str(parsed), "nothing to compare", "≤ 1 s",
                parsed.median <= 1000,
            ),
            Figure(
                f"read that answer from the cache, {size / 1e6:.1f} MB", str(cached), "nothing to compare", "≤ 200 ms",
                cached.median <= 200,
            ),
            Figure(
                "the jobs ahead and what would start sooner, for 5 jobs", str(advised), "nothing to compare",
                "≤ 200 ms", advised.median <= 200,
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
