"""`run.log` and `run.tracker`, with TensorBoard, wandb and MLflow themselves; the files are read back."""

from __future__ import annotations

import json
import socket

import pytest
import train_ranks

import serried.train as st
import tracked
from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.ranks import command
from serried.schema.layout import RunDirectory
from serried.schema.plan import Track
from serried.schema.tracking import Tracking

pytestmark = pytest.mark.torch

PATIENT = """\
from serried.train import tracking as tracker
tracker.START_SECONDS = tracker.FINISH_SECONDS = tracker.LEAVE_SECONDS = 1000
"""
"""A slow machine is not a broken sink."""

LOGS = """\
import serried.train as st
with st.session() as run:
    for step in range(1, 4):
        run.log(loss=1 / step, note="text", nan=float("nan"), inf=float("inf"))
"""


@pytest.fixture
def ranks(tmp_path):
    """`ranks(script, 2, sinks=("wandb",))` runs ranks with these settings of `[track]`, without a network."""

    def run(script, count=1, *, variables=(), **settings):
        own = {"project": "digits", "name": "train-k3f9q2", "id": "k3f9q2", "mode": "offline"}
        tracking = Tracking(**{**own, "folder": str(tmp_path / "tracking"), **settings})
        (tmp_path / "tracking").mkdir(exist_ok=True)
        node = tmp_path / "run" / "attempts" / dict(variables).get("SERRIED_ATTEMPT", "1") / "node-0"
        node.mkdir(parents=True, exist_ok=True)
        known = {
            "HOME": str(tmp_path),
            "SERRIED_TRACKER": tracking.encode(),
            "SERRIED_RUN_DIR": str(tmp_path / "run"),
            "SERRIED_ATTEMPT": "1",
            "WANDB_SILENT": "true",
        }
        return train_ranks.run(PATIENT + script, count, **{**known, **dict(variables)})

    return run


def steps(path):
    """The lines of `run.log`, without times and what Serried adds."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{name: value for name, value in entry.items() if name != "t"} for entry in entries]
    return [entry for entry in kept if not any(name.startswith("serried/") for name in entry)]


def succeed(ended):
    assert [each.status for each in ended] == [0] * len(ended), ended
    return ended


def test_each_sink_gets_the_values_of_run_log_from_rank_0(ranks, tmp_path):
    succeed(ranks(LOGS, 2, sinks=("tensorboard", "wandb")))
    folder = tmp_path / "tracking"
    losses = [(step, pytest.approx(1 / step)) for step in (1, 2, 3)]
    assert tracked.events(folder / "tensorboard")["loss"] == losses
    assert [tracked.is_nan(value) for _, value in tracked.events(folder / "tensorboard")["nan"]] == [True] * 3
    assert tracked.events(folder / "tensorboard")["inf"] == [(step, float("inf")) for step in (1, 2, 3)]
    (path,) = tracked.wandb_files(folder)
    rows = tracked.wandb_history(path)
    assert [tracked.is_nan(row.pop("nan")) for row in rows] == [True] * 3
    assert [float(row.pop("inf")) for row in rows] == [float("inf")] * 3
    assert rows == [{"_step": step, "loss": pytest.approx(1 / step), "note": "text"} for step in (1, 2, 3)]
    run = tracked.wandb_run(path)
    assert (run.run_id, run.display_name, run.project, run.run_group) == ("k3f9q2", "train-k3f9q2", "digits", "")
    lines = [{"step": step, "loss": 1 / step, "note": "text", "nan": "nan", "inf": "inf"} for step in (1, 2, 3)]
    node = tmp_path / "run" / "attempts" / "1" / "node-0"
    assert [steps(node / f"metrics-{rank}.jsonl") for rank in (0, 1)] == [lines, lines]


def test_every_process_is_a_run_of_its_own_in_one_group(ranks, tmp_path):
    succeed(ranks(LOGS, 2, sinks=("tensorboard", "wandb"), every_process=True))
    folder = tmp_path / "tracking"
    runs = [tracked.wandb_run(path) for path in tracked.wandb_files(folder)]
    assert sorted((run.run_id, run.display_name, run.run_group) for run in runs) == [
        ("k3f9q2-r0", "train-k3f9q2-r0", "k3f9q2"),
        ("k3f9q2-r1", "train-k3f9q2-r1", "k3f9q2"),
    ]
    assert [len(tracked.events(folder / "tensorboard" / f"rank-{rank}")["loss"]) for rank in (0, 1)] == [3, 3]


RESUMES = """\
import os
import serried.train as st
with st.session() as run:
    first = 1 if run.attempt == 1 else 3
    for step in range(first, first + 4):
        run.log(value=10 * run.attempt + step, step=step)
"""


def test_a_further_attempt_continues_the_same_run(ranks, tmp_path):
    """The first attempt has logged two steps more than its checkpoint has."""
    for attempt in ("1", "2"):
        sinks = ("tensorboard", "wandb", "mlflow")
        succeed(ranks(RESUMES, sinks=sinks, variables={"SERRIED_ATTEMPT": attempt}))
    folder = tmp_path / "tracking"
    expected = [(1, 11), (2, 12), (3, 23), (4, 24), (5, 25), (6, 26)]
    assert tracked.events(folder / "tensorboard")["value"] == expected
    paths = tracked.wandb_files(folder)
    assert [(tracked.wandb_run(path).run_id, tracked.wandb_run(path).resumed) for path in paths] == [
        ("k3f9q2", False),
        ("k3f9q2", False),  # the server tells, when the files are uploaded
    ]
    assert [[row["_step"] for row in tracked.wandb_history(path)] for path in paths] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    (metrics,) = tracked.mlflow_metrics(folder / "mlflow").values()
    assert metrics["value"] == [(1, 11), (2, 12), (3, 13), (4, 14), *expected[2:]]


OBJECTS = """\
import pathlib, torch
import serried.train as st
with st.session() as run:
    tracker = run.tracker
    model = run.wrap(torch.nn.Linear(2, 1))
    tracker.watch(model, log="all", log_freq=1)
    if tracker.wandb:
        import wandb
        tracker.wandb.config.update({"lr": 0.1})
    for step in range(3):
        model(torch.ones(1, 2, device=run.device)).sum().backward()
        table = wandb.Table(columns=["a"], data=[[1]]) if tracker.wandb else None
        tracker.log({"loss": torch.tensor(0.5), **({"table": table} if table else {})}, epoch=step)
    tracker.summary(loss=0.25)
    path = pathlib.Path(FOLDER, f"model-{run.rank}.txt")
    path.write_text("weights")
    tracker.artifact(path, name="model", type="model")
    path.unlink()
    print(run.rank, type(tracker.wandb).__name__)
    assert run.broadcast_object(run._progress.step) == run._progress.step == 3
    tracker.artifact("missing")
    tracker.finish()
    tracker.finish()
    assert tracker.wandb is None
"""


def test_a_rank_that_is_a_run_reaches_the_real_run_of_wandb_and_its_objects(ranks, tmp_path):
    ended = succeed(ranks(OBJECTS.replace("FOLDER", repr(str(tmp_path))), 2, sinks=("wandb", "mlflow")))
    assert [each.output for each in ended] == ["0 Run\n", "1 NoneType\n"]
    assert [line for line in ended[0].errors.splitlines() if line.startswith("serried:")] == [
        "serried: the tracker keeps no artifact `missing`: no such file or directory"
    ]
    (path,) = tracked.wandb_files(tmp_path / "tracking")
    rows = [row for row in tracked.wandb_history(path) if "table._type" in row]
    assert [(row["_step"], row["loss"], row["epoch"], row["table._type"]) for row in rows] == [
        (step, 0.5, step - 1, "table-file") for step in (1, 2, 3)
    ]
    assert tracked.wandb_summary(path)["loss"] == 0.25
    assert any(name.startswith("gradients") for name in tracked.wandb_summary(path))
    assert tracked.wandb_artifacts(path, "model") == [("model", ["model-0.txt"])]
    (kept,) = (tmp_path / "tracking" / "mlflow").glob("*/*/artifacts/model/*")
    assert (kept.name, kept.read_text()) == ("model-0.txt", "weights")
    lines = [{"step": step, "loss": 0.5, "epoch": step - 1} for step in (1, 2, 3)]
    node = tmp_path / "run" / "attempts" / "1" / "node-0"
    assert steps(node / "metrics-0.jsonl") == lines
    assert not (node / "metrics-1.jsonl").read_text()  # `tracker.log` is for the runs of trackers


@pytest.mark.parametrize("settings", [{"mode": "off", "sinks": ("wandb", "tensorboard")}, {"sinks": ()}])
def test_every_use_of_the_tracker_is_safe_when_it_is_off(ranks, tmp_path, settings):
    script = OBJECTS.replace("FOLDER", repr(str(tmp_path))).replace(
        "    tracker.watch", '    tracker.init(project="another", tags=["a"])\n    tracker.watch'
    )
    ended = succeed(ranks(script, 2, **settings))
    assert [each.output for each in ended] == ["0 NoneType\n", "1 NoneType\n"]
    assert list((tmp_path / "tracking").iterdir()) == []
    assert len(steps(tmp_path / "run" / "attempts" / "1" / "node-0" / "metrics-0.jsonl")) == 3


BREAKS = """\
import os, pathlib, signal, sys, time
import serried.train as st
from serried.train import tracking as tracker
from serried.train.tracking import sinks
wait = tracker.Feed.wait_for_end
limits = {"wandb": LIMIT}
tracker.Feed.wait_for_end = lambda self, _: wait(self, time.monotonic() + limits.get(self.sink.name, 1000))
HOW
with st.session() as run:
    run.tracker.wandb
    BREAK
    for step in range(3):
        run.log(loss=step)
        run.flush()
print("trained")
"""
KILL = """
    for path in pathlib.Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            if os.readlink(f"/proc/{pid}/exe").endswith(sinks.Wandb.CORE):
                os.kill(pid, signal.SIG)
"""


@pytest.mark.parametrize(
    ("how", "broken", "reason"),
    [
        ("", KILL.replace("SIG)", "SIGTERM)"), "ConnectionResetError"),  # as a stop notice to all processes does
        ("", KILL.replace("SIG)", "SIGSTOP)"), "did not finish in time"),
        ("sys.modules['wandb'] = None", "", "the module `wandb` is not installed"),
    ],
)
def test_a_broken_sink_is_cut_off_with_one_warning_and_the_training_continues(ranks, tmp_path, how, broken, reason):
    limit = "1" if "in time" in reason else "1000"
    script = BREAKS.replace("HOW", how).replace("LIMIT", limit).replace("    BREAK\n", broken)
    (ended,) = succeed(ranks(script, sinks=("wandb", "tensorboard")))
    (line,) = [line for line in ended.errors.splitlines() if line.startswith("serried:")]
    assert line.startswith("serried: the tracker `wandb` is cut off: ")
    assert line.endswith("; the training continues")
    assert reason in line
    assert "Traceback" not in ended.errors
    assert ended.output == "trained\n"
    assert len(steps(tmp_path / "run" / "attempts" / "1" / "node-0" / "metrics-0.jsonl")) == 3
    assert len(tracked.events(tmp_path / "tracking" / "tensorboard")["loss"]) == 3


def test_a_folder_that_cannot_be_written_cuts_off_each_sink_alone(ranks, tmp_path):
    (tmp_path / "file").touch()
    settings = {"sinks": ("tensorboard", "mlflow"), "folder": str(tmp_path / "file" / "tracking")}
    (ended,) = succeed(ranks(LOGS, **settings))
    lines = sorted(line.split(":")[1] for line in ended.errors.splitlines() if line.startswith("serried:"))
    assert lines == [" the tracker `mlflow` is cut off", " the tracker `tensorboard` is cut off"]


def test_without_a_server_that_answers_wandb_logs_offline_at_once(ranks, tmp_path):
    variables = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:1", "WANDB_MODE": ""}
    succeed(ranks(LOGS, sinks=("wandb",), mode="auto", variables=variables))
    assert len(tracked.wandb_files(tmp_path / "tracking")) == 1


def test_a_server_that_accepts_and_never_answers_leaves_an_offline_run(ranks, tmp_path):
    script = f"from serried.train.tracking.sinks import Wandb\nWandb.START_SECONDS = 1\n{LOGS}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        variables = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": address}
        (ended,) = succeed(ranks(script, sinks=("wandb",), mode="auto", variables=variables))
    assert "serried: the tracker `wandb` logs offline: " in ended.errors
    assert "is cut off" not in ended.errors
    assert "Traceback" not in ended.errors
    (path,) = tracked.wandb_files(tmp_path / "tracking")
    assert [row["_step"] for row in tracked.wandb_history(path)] == [1, 2, 3]


def test_online_without_a_key_logs_offline_and_says_how_to_give_one(ranks, tmp_path):
    (ended,) = succeed(ranks(LOGS, sinks=("wandb",), mode="online"))
    said = "serried: the tracker `wandb` logs offline: `WANDB_API_KEY` is not set, and no file has a key"
    assert said in ended.errors
    assert len(tracked.wandb_files(tmp_path / "tracking")) == 1


PLAIN = """\
import os
os.chdir(os.environ["HOME"])
import serried.train as st
with st.session() as run:
    run.tracker.init(sinks=["tensorboard", "wandb"], mode="offline")
    run.log(loss=0.5)
print(run.tracker.directory)
"""


def test_a_plain_script_names_its_sinks_itself_and_their_files_are_in_the_folder_which_the_tracker_names(tmp_path):
    (ended,) = succeed(train_ranks.run(PATIENT + PLAIN, 1, WANDB_SILENT="true", HOME=str(tmp_path)))
    assert ended.output == f"{tmp_path}/tracking\n"
    assert tracked.events(tmp_path / "tracking" / "tensorboard") == {"loss": [(1, 0.5)]}
    (path,) = tracked.wandb_files(tmp_path / "tracking")
    assert tracked.wandb_history(path) == [{"_step": 1, "loss": 0.5}]


def test_an_unknown_sink_or_mode_is_refused_with_a_hint():
    for choice, problem in (({"sinks": ["wandbb"]}, "`wandbb` is not a sink"), ({"mode": "on"}, "`on` is not a mode")):
        with st.session() as run, pytest.raises(st.SettingError, match=f"{problem} of the tracker\nhint: use one of "):
            run.tracker.init(**choice)


CHOOSES = """\
import serried.train as st
with st.session() as run:
    CHOICE
    run.log(loss=run.rank)
"""


def in_a_job(tmp_path, track, choice, **variables):
    """Two ranks with all variables that the agent gives them. The runs of wandb."""
    plan = a_plan(root=str(tmp_path), nodes=1)._replace(track=track)
    work = Attempt(RunDirectory(tmp_path / "run"), plan, None, 1)
    (tmp_path / "run" / "attempts" / "1" / "node-0").mkdir(parents=True)
    port = train_ranks.free_port()
    known = {"HOME": str(tmp_path), "WANDB_SILENT": "true", "PYTHONPATH": train_ranks.SOURCE, **variables}
    each = []
    for rank in (0, 1):
        place = command.RankPlace(0, rank, rank, "127.0.0.1", port, 1, 0.0, str(tmp_path / "stop"))
        each.append({**known, **command.environment(work, place, known), "OMP_NUM_THREADS": "1"})
    script = PATIENT + CHOOSES.replace("CHOICE", choice)
    processes = [train_ranks.forker().start(script, {**train_ranks.environment(), **own}) for own in each]
    assert not [each for each in succeed(train_ranks.finish(processes)) if "serried:" in each.errors]
    return [tracked.wandb_run(path) for path in tracked.wandb_files(tmp_path / "run" / "results" / "tracking")]


WANDB = Track(("wandb",), project="digits", mode="offline")


@pytest.mark.parametrize(
    ("choice", "variables", "project"),
    [
        ('run.tracker.init(project="mine")', {}, "mine"),
        ('run.tracker.init(project="mine")', {"WANDB_PROJECT": "users"}, "users"),
    ],
)
def test_the_script_decides_over_the_agents_variables_and_not_over_the_users(tmp_path, choice, variables, project):
    (run,) = in_a_job(tmp_path, WANDB, choice, **variables)
    assert (run.run_id, run.project) == ("k3f9q2", project)


def test_a_mode_of_the_script_decides_over_the_agents(tmp_path):
    track, choice = WANDB._replace(mode="online"), 'run.tracker.init(mode="offline")'
    (run,) = in_a_job(tmp_path, track, choice, WANDB_API_KEY="0" * 40, WANDB_BASE_URL="http://127.0.0.1:1")
    assert run.run_id == "k3f9q2"


def test_a_script_makes_each_rank_a_run_of_its_own(tmp_path):
    runs = in_a_job(tmp_path, WANDB, "run.tracker.init(every_process=True)")
    assert sorted((run.run_id, run.display_name, run.run_group) for run in runs) == [
        ("k3f9q2-r0", "train-k3f9q2-r0", "k3f9q2"),
        ("k3f9q2-r1", "train-k3f9q2-r1", "k3f9q2"),
    ]


LATE = """\
import serried.train as st
with st.session() as run:
    run.log(loss=0.5)
    run.flush()
    run.tracker.init(project="digits")  # as it is
    run.tracker.init(project="late")
    run.tracker.init(tags=["late"], every_process=True)
    run.log(loss=0.25)
    run.tracker.finish()
    run.log(loss=0.0)
"""


def test_late_settings_are_ignored_with_one_warning_and_waiting_values_reach_the_sinks_before_they_close(
    ranks, tmp_path
):
    (ended,) = succeed(ranks(LATE, sinks=("tensorboard",)))
    assert [line for line in ended.errors.splitlines() if line.startswith("serried:")] == [
        "serried: the tracker has started, and ignores `project`; hint: call it before the first `run.log`"
    ]
    assert tracked.events(tmp_path / "tracking" / "tensorboard")["loss"] == [(1, 0.5), (2, 0.25)]
