"""How far ranks are, from what they write."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from serried.agent.sampling.worker import RankProgress, Steps


class Written:
    """The files of a rank, and its progress."""

    def __init__(self, folder: Path, source: str = "") -> None:
        self.metrics, self.log, self.report = folder / "metrics-0.jsonl", folder / "rank-0.log", folder / "m.json"
        metric = {"name": "loss", "source": source} if source else None
        self.progress = RankProgress(self.metrics, self.log, metric, folder)
        self.began_at = time.monotonic()

    def add(self, *entries, log=""):
        with self.metrics.open("a") as file:
            file.writelines(entry if isinstance(entry, str) else json.dumps(entry) + "\n" for entry in entries)
        with self.log.open("a") as file:
            file.write(log)
        return self

    def after(self, seconds=0.0):
        """The quantities; those that depend on when this test runs are rounded or left out."""
        found = self.progress.sample(lambda: self.began_at + seconds)
        return {name: value for name, value in found.items() if not name.endswith("_age")}


def at(seconds, **fields):
    """An entry of so many seconds after now."""
    return {"t": time.time() + seconds, **fields}


def test_the_librarys_file_gives_step_rate_and_metrics(tmp_path):
    rank = Written(tmp_path)
    rates = {"serried/steps_per_second": 2.0, "serried/samples_per_second": 64.0, "serried/wait_share": 0.25}
    rank.add(at(-20, step=100, loss=2.0), at(0, step=140, loss=1.5, lr=0.1), at(0, total_steps=500))
    rank.add(at(0, step=140, note="text", **rates))
    found = rank.after(0.0)
    assert found.pop("steps_per_second") == pytest.approx(2.0, rel=0.01)
    assert found.pop("step_gap") == pytest.approx(20.0, rel=0.01)
    assert found == {
        "step": 140,
        "total_steps": 500,
        "samples_per_second": 64.0,
        "data_wait": 0.25,
        "metrics": {"loss": 1.5, "lr": 0.1},
    }


def test_lines_come_in_pieces_and_in_any_order_and_some_are_no_lines_at_all(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(0, step=1, loss=2.0), '{"t": 1, "step": 2, "lo')
    assert rank.after() == {"step": 1, "metrics": {"loss": 2.0}}
    rank.add('ss": 1.0}\n', "null\n", "[" * 100_000 + "\n", "\0\xff\n", '{"step": true}\n', '{"step": "9"}\n')
    rank.add({"step": 3, "loss": "nan", "t": "yesterday"}, {"step": 3, "t": float("nan"), "other": None})
    assert rank.after(1.0)["step"] == 3
    assert rank.after(1.0)["metrics"] == {"loss": "nan"}


def test_integers_of_any_size_are_no_values(tmp_path):
    rank = Written(tmp_path)
    huge = 10**400
    rank.add(at(0, step=huge), {"t": huge, "step": 2, "lr": 3, "loss": huge}, at(0, total_steps=huge))
    assert rank.after() == {"step": 2, "metrics": {"lr": 3}}


def test_the_last_step_stays_known_after_the_loop(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(0, step=8), at(0, total_steps=9), at(0, total_steps=None))
    assert "total_steps" not in rank.after()
    rank.add(at(0, total_steps=9), at(0, step=9), at(0, total_steps=None))
    assert rank.after()["total_steps"] == 9


def test_a_clock_that_jumps_makes_no_step_old_and_a_step_of_the_future_counts_as_now(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(-3000, step=1))
    assert rank.progress.sample(lambda: rank.began_at)["step_age"] > 2990
    rank.add(at(-3600, step=2))
    assert rank.progress.sample(lambda: rank.began_at + 5)["step_age"] == 0
    rank.add(at(7200, step=4))
    assert rank.progress.sample()["step_age"] == 0


def test_a_hung_training_does_not_look_healthy(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(-10, step=10), at(0, step=20, **{"serried/samples_per_second": 64.0}), log="working\n")
    assert {"samples_per_second", "steps_per_second"} < set(rank.after())
    found = rank.progress.sample(lambda: rank.began_at + 990)
    assert (round(found["step_age"], -1), round(found["output_age"], -1)) == (990, 990)
    assert found["steps_per_second"] == pytest.approx(0.01, rel=0.01)
    assert "samples_per_second" not in found


def test_slow_steps_have_a_rate(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(-600, step=1), at(-300, step=2), at(0, step=3))
    assert rank.after(250)["steps_per_second"] == pytest.approx(1 / 300, rel=0.01)


def test_neither_an_evaluation_nor_a_new_beginning_counts_into_the_rate_of_the_steps_after_it():
    steps = Steps()
    for second in range(41):
        steps.reach(second, float(second))
    assert steps.quantities(240.0)["steps_per_second"] == 30 / 230
    steps.reach(41, 241.0)
    assert steps.quantities(241.0) == {"step": 41, "step_age": 0.0}
    steps.reach(42, 242.0)
    assert steps.quantities(242.0) == {"step": 42, "step_age": 0.0, "steps_per_second": 1.0, "step_gap": 1.0}
    for step, moment in ((5, 243), (15, 253)):
        steps.reach(step, moment)
    assert steps.quantities(253) == {"step": 15, "step_age": 0.0, "steps_per_second": 1.0, "step_gap": 10.0}


def test_steps_that_are_written_while_others_are_read_keep_their_own_times(tmp_path, monkeypatch):
    """A busy node: each read takes longer than the one before."""
    rank, wall, passed, delays = Written(tmp_path), time.time(), [0.0], [0, 1, 5, 9]
    read = rank.progress._metrics.lines
    monkeypatch.setattr(time, "time", lambda: wall + passed[0])
    monkeypatch.setattr(rank.progress._metrics, "lines", lambda: train(delays.pop(0)) or read())

    def train(seconds):
        for _ in range(24 * seconds):
            passed[0] += 1 / 24
            rank.add({"t": wall + passed[0], "step": round(passed[0] * 24)})

    for _ in range(4):
        train(2)
        found = rank.progress.sample(lambda: passed[0])
        assert found["steps_per_second"] == pytest.approx(24)


def test_named_groups_of_the_output_are_steps_and_metrics(tmp_path):
    rank = Written(tmp_path, r"stdout:^step (?P<step>\d+)/(?P<total>\d+) acc (?P<acc>\S+) loss (\S+)$")
    rank.add(log="step 1/90 acc 0.5 loss 2\nstep 2/90 acc 0.6 loss 1.5\rstep 3/90 acc nan loss 1\rstep 4")
    assert rank.after() == {"step": 3, "total_steps": 90, "metrics": {"acc": "nan", "loss": 1.0}}


def test_an_expression_for_the_step_alone_gives_no_metric(tmp_path):
    rank = Written(tmp_path, r"stdout:epoch (?P<step>\d+)")
    assert rank.add(log="epoch 7\n").after() == {"step": 7}


def test_progress_bars_are_not_steps(tmp_path):
    rank = Written(tmp_path)
    assert rank.add(log="Validation:  45%|####     | 45/100 [00:03<00:04, 12.0it/s]\r").after() == {}


def test_a_file_of_the_program_gives_the_metric(tmp_path):
    document = '{"loss": 1.5, "step": 7, "total": 9}'
    for text in (document, '{"loss": 9}\n' + document + '\n{"other": 1}\n'):
        rank = Written(tmp_path, "file:m.json")
        rank.report.write_text(text)
        assert rank.after() == {"step": 7, "total_steps": 9, "metrics": {"loss": 1.5}}


def test_a_huge_log_costs_no_more_than_its_end(tmp_path):
    rank = Written(tmp_path, r"stdout:loss (\S+)")
    rank.log.touch()
    os.truncate(rank.log, 10 * 10**9)
    rank.add(log="\nloss 3\n")
    assert rank.after() == {"metrics": {"loss": 3.0}}
    os.truncate(rank.log, 20 * 10**9)
    rank.add(log="\nloss 2\n" + "x" * 1000)
    assert rank.after() == {"metrics": {"loss": 2.0}}


def test_very_many_metrics_are_cut_to_a_few(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(0, step=1, **{f"metric_{number}" * 3: number for number in range(1000)}))
    assert 3 <= len(rank.after()["metrics"]) <= 8


def test_of_very_many_lines_the_last_count_and_rates_are_kept(tmp_path):
    rank = Written(tmp_path)
    rank.add(at(0, step=0, **{"serried/wait_share": 0.5}), *(at(0, step=step) for step in range(3000)))
    found = rank.after()
    assert (found["step"], found["data_wait"]) == (2999, 0.5)
