"""What a rank leaves in the run directory when `serried profile` chose it, and that it trains on whatever happens."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

import train_ranks  # noqa: E402 - only where torch is

from serried.schema.layout import RunDirectory  # noqa: E402
from serried.train.profile import covered, operators, summarized  # noqa: E402

SESSION = """
import torch
import serried.train as st

with st.session() as run:
    model = run.wrap(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = run.loader(torch.utils.data.TensorDataset(torch.randn(24, 3)), batch_size=2, num_workers=1)
    for epoch in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            schedule.step()
print("trained", optimizer.param_groups[0]["lr"] < 0.1, flush=True)
"""

ONE_IMPORT = """
import serried.train.profile
import torch

BEFORE
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
other = torch.optim.SGD([weight], 0.1)
for step in range(6):
    (weight - 1).square().sum().backward()
    optimizer.step()
    other.step()
    AFTER
print("trained", flush=True)
"""

BY_HAND = """
from serried.train import profile
import torch

for step in range(6):
    torch.randn(8, 8) @ torch.randn(8, 8)
    profile.step()
print("trained", flush=True)
"""


def wanted(tmp_path, steps, ranks=(0,)):
    request = {"steps": steps, "ranks": list(ranks), "memory": False}
    return {"SERRIED_RUN_DIR": str(tmp_path), "SERRIED_PROFILE": json.dumps(request)}


def run_alone(script, tmp_path, steps):
    (ended,) = train_ranks.run(script, world_size=1, **wanted(tmp_path, steps))
    return ended


def summary(tmp_path, rank=0):
    return json.loads(RunDirectory(tmp_path).profile_summary(rank).read_text())


def steps_of_trace(tmp_path, rank=0):
    with gzip.open(RunDirectory(tmp_path).profile_trace(rank)) as file:
        events = json.load(file)["traceEvents"]
    return sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep"))


def calls(tmp_path):
    return {row["name"]: row["calls"] for row in summary(tmp_path)["operators"]}


def test_a_session_needs_no_change_and_only_the_chosen_rank_is_profiled(tmp_path):
    ended = train_ranks.run(SESSION, **wanted(tmp_path, [2, 4]))
    assert [(one.status, one.output) for one in ended] == [(0, "trained True\n")] * 2, ended
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "profiles").iterdir()}
    assert files == {"rank-0.json.gz": 0o600, "rank-0.summary.json": 0o600}
    assert steps_of_trace(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4"]
    known = summary(tmp_path)
    assert (known["state"], known["steps"], known["gpu_seconds"]) == ("written", [2, 4], None)
    assert 0 < known["wait_seconds"] < known["seconds"]
    assert calls(tmp_path)["Optimizer.step#SGD.step"] == 2


@pytest.mark.parametrize("steps", [[0, 2], [1, 3], [3, 6]])
def test_one_import_is_enough_and_the_first_optimizer_counts(tmp_path, steps):
    ended = run_alone(ONE_IMPORT.replace("BEFORE", "").replace("AFTER", ""), tmp_path, steps)
    assert (ended.status, ended.output) == (0, "trained\n"), ended.errors
    assert steps_of_trace(tmp_path) == [f"ProfilerStep#{number + 1}" for number in range(*steps)]
    assert summary(tmp_path)["steps"] == steps


def test_a_script_without_an_optimizer_counts_its_steps_itself(tmp_path):
    assert run_alone(BY_HAND, tmp_path, [2, 5]).output == "trained\n"
    assert steps_of_trace(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert calls(tmp_path)["aten::mm"] == 3


def test_a_program_that_ends_early_has_the_steps_that_it_made(tmp_path):
    assert run_alone(BY_HAND, tmp_path, [4, 100]).output == "trained\n"
    assert (summary(tmp_path)["state"], summary(tmp_path)["steps"]) == ("written", [4, 6])


@pytest.mark.parametrize("steps", [[6, 9], [50, 60]])
def test_a_program_that_ends_before_says_how_far_it_came(tmp_path, steps):
    assert run_alone(BY_HAND, tmp_path, steps).output == "trained\n"
    known = summary(tmp_path)
    assert {key: known[key] for key in ("rank", "state", "count")} == {"rank": 0, "state": "ended", "count": 6}
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["rank-0.summary.json"]


def test_a_killed_program_leaves_its_state_and_no_torn_trace(tmp_path):
    script = ONE_IMPORT.replace("BEFORE", "").replace("AFTER", "import os; step < 3 or os.kill(os.getpid(), 9)")
    assert run_alone(script, tmp_path, [2, 6]).status == -9
    assert summary(tmp_path)["state"] == "recording"
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["rank-0.summary.json"]


BROKEN = """
import torch.profiler

def broken(*_, **__):
    raise ValueError("no tracing here")
"""


@pytest.mark.parametrize(
    "breaks",
    ["profile.__init__", "profile.prepare_trace", "profile.start_trace", "profile.export_chrome_trace", "write_json"],
)
def test_a_broken_profiler_is_a_warning_which_can_be_read_afterwards_and_the_training_goes_on(tmp_path, breaks):
    home = "serried.train.profile.files" if breaks == "write_json" else "torch.profiler"
    before = f"{BROKEN}\n{home}.{breaks} = broken"
    ended = run_alone(ONE_IMPORT.replace("BEFORE", before).replace("AFTER", ""), tmp_path, [2, 4])
    assert (ended.status, ended.output) == (0, "trained\n"), ended.errors
    warning = "serried: warning: the profiler of rank 0 failed: ValueError: no tracing here"
    assert [line for line in ended.errors.splitlines() if line.startswith("serried")] == [warning]
    if breaks != "write_json":
        known = summary(tmp_path)
        assert (known["state"], known["message"]) == ("failed", "ValueError: no tracing here")
        assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == ["rank-0.summary.json"]


@pytest.mark.parametrize(
    "variables",
    [
        {"SERRIED_PROFILE": "{"},
        {"SERRIED_PROFILE": '{"steps": [1, 2], "ranks": [0], "memory": false}', "SERRIED_RUN_DIR": "/proc/none"},
    ],
)
def test_no_request_can_end_a_training(variables):
    (ended,) = train_ranks.run(BY_HAND, world_size=1, **variables)
    assert (ended.status, ended.output) == (0, "trained\n")
    assert ended.errors.startswith("serried: warning: ")


def test_without_a_request_nothing_is_loaded_and_nothing_left(tmp_path):
    script = "import sys, serried.train.profile as p; p.step(); print('torch' in sys.modules, 'gzip' in sys.modules)"
    environment = train_ranks.environment(SERRIED_RUN_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, (tmp_path / "profiles").exists()) == ("False False\n", False)


def event(name, begin, end, device="CPU", **more):
    times = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(key=name, name=name, device_type=f"DeviceType.{device}", time_range=times, **more)


def test_kernels_that_overlap_count_once_and_marks_of_steps_are_no_kernels():
    events = [
        event("ProfilerStep*", 0, 500_000),
        event("ProfilerStep*", 500_000, 900_000),
        event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 100_000),
        event("aten::mm", 100_000, 110_000),
        event("ProfilerStep*", 100_000, 900_000, "CUDA"),
        event("gemm", 100_000, 400_000, "CUDA"),
        event("ncclDevKernel", 300_000, 500_000, "CUDA"),
        event("gemm", 900_000, 1_000_000, "CUDA"),
    ]
    assert summarized(events, 2) == {"seconds": 1.0, "wait_seconds": 0.1, "gpu_seconds": 0.5}
    assert summarized(events, 1) == {"seconds": 0.5, "wait_seconds": 0.1, "gpu_seconds": 0.4}
    assert covered([(5, 6), (0, 4), (1, 2), (9, 8)]) == 5


def test_a_kernel_of_triton_has_the_name_of_its_launch_and_is_no_mark():
    events = [
        event("ProfilerStep*", 0, 100),
        event("triton_red_fused_cos", 10, 20),
        event("ProfilerStep*", 10, 100, "CUDA", is_user_annotation=True),
        event("triton_red_fused_cos", 30, 60, "CUDA", is_user_annotation=False),
    ]
    assert summarized(events, 1)["gpu_seconds"] == 30 / 1e6


def average(key, cpu, device="CPU", *, count=2, **more):
    return SimpleNamespace(key=key, count=count, self_cpu_time_total=cpu, device_type=f"DeviceType.{device}", **more)


def test_operators_are_ordered_by_their_time_on_the_gpu():
    rows = operators(
        [
            average("aten::add", 9e6, self_device_time_total=0),
            average("aten::mm", 1e6, self_device_time_total=4e6),
            average("aten::old", 1e6, self_cuda_time_total=5e6),
            average("ProfilerStep*", 1e6, self_device_time_total=9e6),
        ],
        [],
    )
    assert rows == [
        {"name": "aten::old", "calls": 2, "cpu_seconds": 1.0, "gpu_seconds": 5.0, "share": 5 / 9},
        {"name": "aten::mm", "calls": 2, "cpu_seconds": 1.0, "gpu_seconds": 4.0, "share": 4 / 9},
        {"name": "aten::add", "calls": 2, "cpu_seconds": 9.0, "gpu_seconds": 0.0, "share": 0.0},
    ]


RECORDED = json.loads(Path(__file__).with_name("kernels_of_an_h100.json").read_text(encoding="utf-8"))


def recorded(program):
    """The averages and the events of operators that launched kernels, as torch reported them."""
    averages = [
        average(key, cpu, device, count=count, self_device_time_total=on_device, is_user_annotation=is_mark)
        for key, count, device, cpu, on_device, is_mark in RECORDED[program]["averages"]
    ]
    events = [
        event(name, 0, 0, kernels=[SimpleNamespace(name=kernel, duration=took) for kernel, took in kernels])
        for name, kernels in RECORDED[program]["kernels"]
    ]
    return averages, events


def test_each_kernel_of_a_real_gpu_counts_once_for_its_operator_and_those_of_a_cuda_graph_stand_alone():
    rows = {}
    for program in ("eager", "compiled", "graph"):
        averages, events = recorded(program)
        rows[program] = operators(averages, events)
        kernels = [each for each in averages if each.device_type == "DeviceType.CUDA" and not each.is_user_annotation]
        of_kernels = sum(each.self_device_time_total for each in kernels) / 1e6
        assert sum(row["gpu_seconds"] for row in rows[program]) == pytest.approx(of_kernels)
        assert sum(row["share"] for row in rows[program]) == pytest.approx(1.0)
    assert [row["name"] for row in rows["eager"]][:2] == ["aten::mm", "aten::addmm"]
    assert {row["name"].partition("_")[0] for row in rows["compiled"]} == {"triton"}
    (largest, *_) = rows["graph"]
    assert (largest["name"].partition("_")[0], largest["calls"], largest["cpu_seconds"]) == ("sm80", 4, 0.0)


def test_a_collective_of_nccl_has_the_name_of_its_kernel():
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    rows = operators(
        [
            average("record_param_comms", 1e6, self_device_time_total=4e6),
            average(kernel, 0, "CUDA", self_device_time_total=4e6, is_user_annotation=False),
        ],
        [event("record_param_comms", 0, 1, kernels=[SimpleNamespace(name=kernel, duration=4e6)])],
    )
    assert [(row["name"], row["gpu_seconds"]) for row in rows] == [(kernel, 4.0), ("record_param_comms", 0.0)]


def test_operators_that_are_left_out_have_their_share_of_the_time():
    rows = operators([average(f"aten::{number}", 1e6, self_device_time_total=0) for number in range(100)], [])
    assert [row["share"] for row in rows] == [0.01] * 50
