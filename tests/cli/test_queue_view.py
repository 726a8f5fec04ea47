"""The page of `serried queue` on terminals of several widths. Pure."""

from __future__ import annotations

import dataclasses

import pytest

from serried.cli import queue
from serried.cli.queue import Page
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.occupancy_cache import Look
from serried.views import console
from serried.views.text import width

H100 = "nvidia_h100_80gb_hbm3"
"""As a Slurm with `AutoDetect=nvml` names the type."""


def a_page(age: float = 0.0) -> Page:
    partitions = ("gpu_h100_long", "gpu_interactive")
    node = NodeUse("g1", partitions, "mixed", True, False, 112, 12, 1000, 1000, {H100: 8}, {H100: 1})
    occupancy = Occupancy(
        nodes=tuple(node._replace(name=f"g{number}") for number in range(1200)),
        partitions=tuple(PartitionUse(name, is_open=True, limit_seconds=86400) for name in partitions),
        jobs=tuple(
            QueuedJob(str(at), at % 2 == 0, False, partitions[:1], waits_for_resources=at % 2 == 1)
            for at in range(3000)
        ),
    )
    return Page("fir", "slurm", Look(occupancy, 1000.0), {}, None, 1000.0 + age, [])


def table(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = [*queue.lines(a_page())]
    assert max(map(width, lines)) <= columns
    start = next(at for at, line in enumerate(lines) if line.startswith("PARTITION"))
    return lines[start : start + 3]


def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(monkeypatch):
    assert table(monkeypatch, 80) == [
        "PARTITION        GPU                    FREE  USED  NODES   RUN   WAIT",
        "gpu_h100_long    nvidia_h100_80gb_hbm3  1200  8400  0/1200  1500  1500",
        "gpu_interactive  nvidia_h100_80gb_hbm3  1200  8400  0/1200  0     0",
    ]
    assert table(monkeypatch, 60) == [
        "PARTITION        GPU                    FREE  RUN   WAIT",
        "gpu_h100_long    nvidia_h100_80gb_hbm3  1200  1500  1500",
        "gpu_interactive  nvidia_h100_80gb_hbm3  1200  0     0",
    ]


def test_a_long_name_of_a_run_is_cut(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    job = QueuedJob(
        "22", False, True, ("gpu",), gpus=2, limit_seconds=3600, reason="Priority", waits_for_resources=True
    )
    page = dataclasses.replace(a_page(), waiting=[job], runs={"22": ("k3f9q2", "x" * 300)})
    heads = [line for line in queue.lines(page) if line.startswith("k3f9q2")]
    assert heads == [f"k3f9q2 {'x' * 23}…, job 22: 1 node x 2 GPUs for 1h in gpu"]


def test_a_pipe_always_has_all_columns():
    lines = [*queue.lines(a_page())]
    assert "PARTITION        LIMIT  GPU                    FREE  USED  OUT  NODES   CPUS          RUN   WAIT" in lines


def test_an_old_answer_claims_nothing_about_now():
    assert [*queue.lines(a_page())][-1] == "you have no jobs here"
    assert [*queue.lines(a_page(age=27))][-1] == "you have no jobs here, as of 27s ago"
