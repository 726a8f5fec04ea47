"""How long `serried report` takes for a run on 64 nodes with 512 GPUs and 10,000 lines of samples on each node.

The samples are written here: 3 GB in a temporary folder, so set `TMPDIR` where that much is free.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import Figure, alternate, environment, record, seconds

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

NODES, GPUS, LINES = 64, 8, 10_000
T = 1_795_000_060


def main() -> None:
    bin_ = environment()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder, "state"))
        summary = write_run(Path(folder, "scratch"))
        command = [bin_ / "serried", "report", "k3f9q2"]
        seconds(command)  # as the first reader of the end, keeps a summary in the record
        kept = summary.read_bytes()
        timings = alternate(
            {
                "serried report": partial(with_summary, summary, b"", command),
                "serried report, later": partial(with_summary, summary, kept, command),
                "serried report --explain": partial(seconds, [bin_ / "serried", "report", "--explain"]),
            },
            rounds=9,
        )
    report, later, rule = (timings[name] for name in timings)
    record(
        "Reports",
        [
            Figure(
                f"`serried report`, {NODES} nodes with {GPUS} GPUs, {LINES:,} lines of samples each",
                str(report),
                f"of an ended run, whose summary is in its record: {later}; "
                f"`serried report --explain`, which reads no run: {rule}",
                "≤ 1 s",
                report.median <= 1000,
            )
        ],
        timings,
    )


def with_summary(path: Path, content: bytes, command: list[Path | str]) -> float:
    """The seconds of a command; without content, the samples are read."""
    path.write_bytes(content)
    return seconds(command)


def write_run(root: Path) -> Path:
    """Write a run that has ended, with its samples. Returns the place of its summary."""
    from building import RunOnDisk

    run = RunOnDisk(root, nodes=NODES, ranks=GPUS, gpus=GPUS, cpus=64, memory_mb=640 * 1024, time_seconds=400_000)
    attempt = run.attempt()
    for node in range(NODES):
        path = attempt.samples(node)
        path.parent.mkdir()
        path.write_text(samples_text(node, f"n{node:03}", LINES), encoding="utf-8")
    run.ending(seconds=30.0 * LINES)
    return run.record.directory.usage


def samples_text(node: int, host: str, lines: int) -> str:
    """The samples of a node with 8 GPUs, and a rank for each."""
    gpus = {str(gpu): {"name": "NVIDIA H200", "memory": 140 << 30, "power_cap": 700.0} for gpu in range(GPUS)}
    about = {
        "t": T,
        "host": host,
        "interval": 5.0,
        "node": {"cpus": 64, "memory": 640 << 30, "memory_scope": "job"},
        "gpu_source": "stand-in",
        "gpus": gpus,
    }
    text = "\n".join([json.dumps(about), *periods(lines), ""])
    for gpu in range(GPUS):
        text = text.replace(f'"rank {gpu}"', f'"{node * GPUS + gpu}"')
    return text


@functools.cache
def periods(lines: int) -> list[str]:
    return [json.dumps(a_period(at)) for at in range(1, lines + 1)]


def a_period(at: int) -> dict[str, object]:
    """A line of an ordinary run; the ranks of the node stand in it as `rank 0` and so on."""
    gpu = {
        "busy": [90, 97.1, 100],
        "memory": [120_259_084_288] * 3,
        "power": [600.1, 640.2, 699.0],
        "temperature": [60, 61.2, 63],
        "clock": [1900, 1980, 1980],
        "sm_active": [60.1, 71.2, 80.3],
        "throttled": ["power-cap"],
        "ecc_errors": 0,
    }
    rank = {
        "cpu": [0.9, 1.1, 1.3],
        "memory": [4_294_967_296] * 3,
        "read": [0, 1000, 2000],
        "write": [0, 0, 0],
        "step": 90 * at,
        "total_steps": 900_000,
        "steps_per_second": [2.9, 3.1, 3.2],
        "samples_per_second": [190.1, 198.4, 201.0],
        "data_wait": [0.01, 0.02, 0.05],
        "metrics": {"loss": 0.31},
    }
    node = {"cpu": [10, 12.4, 14], "memory": [9_126_805_504] * 3, "disk_free": 91_268_055_040}
    return {
        "t": T + 30 * at,
        "seconds": 30.0,
        "count": 6,
        "node": node,
        "gpus": {str(each): gpu for each in range(GPUS)},
        "ranks": {f"rank {each}": rank for each in range(GPUS)},
    }


if __name__ == "__main__":
    main()
