"""What is unusual in a running attempt, from sequences of samples."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

from building import a_plan
from evidence import STARTED, ended, evidence, exit_of
from serried.agent import notifications
from serried.agent.attempt import Attempt
from serried.agent.head.anomalies import Anomalies, NodeSample, StepPace
from serried.agent.head.live_file import LiveFile
from serried.agent.outcome import verdict
from serried.base.files import make_directory
from serried.schema.layout import RunDirectory, TaskDirectory
from serried.schema.plan import Notify

GPU = {"gpu": 0, "busy": 97.0, "memory": 40e9}
GB = 10**9


class Watched:
    """Nodes with a rank each, sampled every five seconds on a clock of their own."""

    def __init__(self, nodes=2, **options):
        self.anomalies = Anomalies(**options)
        self.now = 1000.0
        self.ranks = [{"rank": at, "step": 0, "step_age": 0.0, "output_age": 0.0} for at in range(nodes)]
        self.gpus = [{**GPU} for _ in range(nodes)]
        self.facts = [{} for _ in range(nodes)]
        self.recorded = []
        self.seen = []

    def look(self):
        """The warnings that hold now, also in `seen`."""
        samples = [
            NodeSample(at, f"n{at}", 0.5, {"ranks": [rank], "gpus": [gpu], **facts})
            for at, (rank, gpu, facts) in enumerate(zip(self.ranks, self.gpus, self.facts, strict=True))
        ]
        found = self.anomalies.look(self.now, samples)
        self.recorded += self.anomalies.new(self.now, found)
        self.seen += [warning["message"] for warning in found]
        return found

    def train(self, seconds, *, steps=2.0, prints=True):
        """Let ranks take so many steps a second; none if 0. Returns the warnings at the end."""
        found = []
        for _ in range(int(seconds / 5)):
            self.now += 5
            for rank in self.ranks:
                taken = int(rank["step"] + 5 * steps)
                rank["step_age"] = 0.2 if taken > rank["step"] else rank["step_age"] + 5
                rank["step"] = taken
                rank["output_age"] = 1.0 if prints else rank["output_age"] + 5
            found = self.look()
        return found


def facts(warnings):
    return [(warning["code"], warning["message"], warning.get("ranks") or warning["nodes"]) for warning in warnings]


def test_ranks_that_take_no_steps_any_more_are_stalled_until_they_do():
    watched = Watched()
    watched.train(300)
    assert watched.train(50, steps=0, prints=False) == []
    message = "no step and no output for 1m10s on ranks 0-1; a step usually takes 0.5s"
    assert facts(watched.train(20, steps=0, prints=False)) == [("stalled", message, [0, 1])]
    assert watched.train(5) == []
    assert watched.recorded == []  # so short a pause is not worth a message to anybody


def test_a_stall_that_lasts_is_recorded_once():
    watched = Watched(nodes=1)
    watched.train(300)
    watched.train(3600, steps=0, prints=False)
    watched.train(60)
    watched.train(3600, steps=0, prints=False)
    (recorded,) = watched.recorded
    assert recorded["message"].startswith("no step and no output for 5m on rank 0;")


def test_evaluations_that_print_compilations_and_the_last_step_are_no_stalls():
    watched = Watched()
    watched.train(10, steps=1)
    watched.train(1800, steps=0, prints=False)  # compiles
    watched.train(300)
    watched.train(600, steps=0)  # evaluates, with a progress bar
    watched.train(300)
    for rank in watched.ranks:
        rank["total_steps"] = rank["step"]
    watched.train(1800, steps=0, prints=False)  # saves results
    assert watched.seen == []


def test_output_of_one_rank_counts_for_ranks_that_wait_for_it():
    watched = Watched(nodes=3)
    watched.train(300)
    for _ in range(120):  # rank 0 validates, with a progress bar
        watched.train(5, steps=0, prints=False)
        watched.ranks[0]["output_age"] = 1.0
        assert watched.look() == []
    for _ in range(24):  # rank 2 hangs, and the others train and print
        watched.train(5)
        watched.ranks[2].update(step=600, step_age=watched.now, output_age=watched.now)
    (warning,) = watched.look()
    assert (warning["code"], warning["ranks"]) == ("stalled", [2])


def test_the_shorter_of_both_ages_is_reported():
    watched = Watched(nodes=1)
    watched.train(300)
    watched.train(300, steps=0)
    (warning,) = watched.train(120, steps=0, prints=False)
    assert warning["message"].startswith("no step and no output for 2m1s on rank 0;")


def test_a_training_that_hangs_after_a_few_looks_is_stalled():
    watched = Watched(nodes=1)
    watched.train(10, steps=4.0)
    (warning,) = watched.train(600, steps=0, prints=False)
    assert warning["code"] == "stalled"
    assert len(watched.recorded) == 1


def test_a_pause_as_long_as_the_ones_before_is_no_stall():
    watched = Watched()
    for _ in range(5):
        watched.train(300)
        watched.train(55, steps=0, prints=False)
    watched.train(300)
    watched.anomalies.look(watched.now, [])  # a sampler that is replaced
    assert watched.train(100, steps=0, prints=False) == []
    assert len(watched.train(60, steps=0, prints=False)) == 1


def test_steps_of_minutes_and_programs_without_steps_are_never_called_stalled_early():
    watched = Watched(nodes=1)
    watched.train(180 * 30, steps=1 / 5)
    slow = StepPace()
    for step in range(30):
        slow.observe(step, 180.0 * step)
    assert slow.longest_pause == 1800
    del watched.ranks[0]["step"]
    watched.now += 9000
    assert watched.look() == []


def test_a_pace_needs_ten_steps_and_survives_steps_that_begin_again():
    pace = StepPace()
    for step in range(11):
        pace.observe(step, step)
        assert pace.longest_pause == math.inf
    for step in (11, 12, 13, 0, 1, 2):
        pace.observe(step, 20.0 + step)  # a clock that jumps back counts as no time
    assert pace.longest_pause == 60


def test_a_loss_that_is_not_a_number_is_recorded_at_once():
    watched = Watched(nodes=4)
    watched.train(30)
    for rank, value in zip(watched.ranks, ("nan", math.inf, 0.3, None), strict=True):
        rank["metrics"] = {"grad_norm": math.nan, "train/Loss": value}
    expected = {"code": "not-finite", "message": "`train/Loss` is nan on rank 0", "ranks": [0]}
    assert watched.look() == [expected]
    assert watched.recorded == [expected]
    for rank in watched.ranks:
        rank["metrics"] = {"loss": 0.2}
    assert watched.look() == []


def test_gpus_that_do_nothing_for_ten_minutes_are_idle_also_if_they_hold_memory():
    watched = Watched(nodes=3)
    watched.gpus[0].update(busy=0.0, memory=3 * 10**8)
    watched.gpus[2].update(busy=4.0)
    assert watched.train(600) == []
    message = "GPU 0 on n0 and 1 GPU on other nodes were less than 5 % busy for 10m5s, but hold 40.0 GB of memory"
    assert facts(watched.train(10)) == [("gpu-idle", message, [0, 2])]
    watched.gpus[1].update(busy=0.0)
    watched.train(700)
    assert watched.look()[0]["message"].startswith("all 3 GPUs were less than")
    for gpu in watched.gpus:
        gpu["busy"] = 90.0
    assert watched.train(5) == []


def test_gpus_without_ranks_yet_without_a_figure_and_cpu_only_jobs_are_never_idle():
    watched = Watched()
    for gpu in watched.gpus:
        gpu["busy"] = 0.0
    watched.facts = [{"ranks": []}, {"ranks": []}]
    watched.train(1800)
    other = Watched()
    other.facts = [{"gpus": [{"gpu": 0, "memory": 1}]}, {"gpus": []}]
    other.train(1800)
    assert watched.seen + other.seen == []


def test_a_gpu_that_the_driver_does_not_report_any_more_is_lost():
    watched = Watched()
    watched.train(60)
    watched.gpus[1] = {"gpu": 0, "name": "NVIDIA H200"}
    assert watched.train(100) == []
    assert facts(watched.train(30)) == [("gpu-lost", "GPU 0 on n1 was lost: the driver does not report it", [1])]


def test_a_gpu_that_was_lost_before_the_start_is_lost_too():
    watched = Watched()
    watched.gpus[1] = {"gpu": 3}
    assert watched.train(120) == []
    (warning,) = watched.train(10)
    assert warning["message"] == "GPU 3 on n1 was lost: the driver does not report it"


def test_a_local_disk_that_a_job_fills_is_nearly_full():
    watched = Watched(nodes=3)
    watched.facts = [{"disk_free": 1.5 * GB}, {"disk_free": 90 * GB}, {}]
    watched.train(60)
    watched.facts = [{"disk_free": 1.4 * GB}, {"disk_free": 1.2 * GB}, {}]
    assert facts(watched.look()) == [("disk-nearly-full", "the local disk of n1 is nearly full: 1.2 GB left", [1])]
    watched.facts[0] = {"disk_free": 10**8}
    assert watched.look()[0]["nodes"] == [0, 1]
    watched.facts[1] = {"disk_free": 90 * GB}
    assert watched.look()[0]["nodes"] == [0]
    assert [recorded["nodes"] for recorded in watched.recorded] == [[1], [0, 1]]


def test_a_rank_far_behind_the_median_for_minutes_is_slow():
    watched = Watched(nodes=4)
    for rank in watched.ranks:
        rank.update(steps_per_second=3.0, data_wait=0.02)
    watched.ranks[2].update(steps_per_second=1.5)
    assert watched.train(180) == []
    message = "rank 2 on n2 takes 1.5 steps per second, and the median rank 3"
    assert facts(watched.train(10)) == [("slow-rank", message, [2])]
    watched.ranks[2].update(steps_per_second=2.9)
    watched.ranks[3].update(data_wait=0.5)
    assert watched.train(180) == []
    (warning,) = watched.train(10)
    assert warning["message"] == "rank 3 on n3 waits for data 50% of its time, and the median rank 2%"


def test_ranks_of_several_programs_of_a_job_script_are_not_compared():
    watched = Watched(nodes=4, is_script=True)
    for at, rank in enumerate(watched.ranks):
        rank.update(rank=0, steps_per_second=1.0 + at)
    watched.train(600)
    assert watched.seen == []


def test_samples_of_another_version_or_damaged_ones_cause_nothing():
    watched = Watched()
    odd = [
        {},
        {"ranks": None, "gpus": 7},
        {"ranks": ["x", {"rank": "x", "step": 1}, {"rank": 1, "step": math.nan, "metrics": ["loss"]}]},
        {"gpus": [{"busy": "x"}, {"gpu": None, "busy": True}], "disk_free": "much"},
    ]
    for facts in odd:
        watched.facts = [facts, facts]
        watched.look()
    assert watched.seen == []


def test_five_hundred_ranks_are_looked_at_together():
    watched = Watched(nodes=512)
    watched.train(100)
    (warning,) = watched.train(120, steps=0, prints=False)
    assert warning["message"].startswith("no step and no output for 2m on ranks 0-511;")


def test_warnings_are_in_the_live_file_and_each_is_recorded_once(tmp_path):
    recorded = []
    own_files, agent = (
        TaskDirectory(tmp_path).attempt(1),
        SimpleNamespace(index=0, host="n0", last_message_at=1.0, is_lost=False),
    )
    attempt = SimpleNamespace(
        files=own_files, number=1, nodes=1, world_size=1, is_script=False, restarts=0, file_mode=0o600, plan=a_plan()
    )
    make_directory(own_files.path)
    live = LiveFile(attempt, [agent], lambda: agent.last_message_at, None, recorded.append)
    for value in ("nan", "nan", 0.3):
        agent.last_message_at += 5
        live.on_sample(agent, {"event": "sample", "ranks": [{"rank": 0, "metrics": {"loss": value}}]})
        live.write()
        written = json.loads(own_files.live.read_text())["warnings"]
        assert written == (recorded if value == "nan" else [])
    assert recorded == [{"code": "not-finite", "message": "`loss` is nan on rank 0", "ranks": [0]}]


def test_an_anomaly_is_sent_once_for_each_code(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(notifications, "_tried", set())
    monkeypatch.setattr(notifications, "_start", lambda _, document: sent.append(json.loads(document)["text"]))
    work = Attempt(RunDirectory(tmp_path), a_plan()._replace(notify=Notify(on=("anomaly",))), None, 1)
    for code, message in (("stalled", "no step"), ("gpu-lost", "a GPU"), ("stalled", "again")):
        notifications.notify(work, "anomaly", code, message=message)
    assert sent == [f"train (k3f9q2) on fir needs attention: {message}" for message in ("no step", "a GPU")]
    assert sorted(path.name for path in work.run.notices.iterdir()) == ["anomaly-gpu-lost", "anomaly-stalled"]


def test_the_end_of_an_attempt_tells_what_was_noticed():
    noticed = {"code": "gpu-lost", "message": "GPU 0 on n1 was lost", "nodes": [0]}
    head = [*STARTED, {"t": 2.0, "event": "anomaly", **noticed}, ended(0, exit_of(0)), ended(1, exit_of(1))]
    document = verdict.end_of(evidence(head), None, [], verdict.AttemptVerdict("COMPLETED", 0, None, "fine")).to_json()
    assert document["warnings"] == [{"code": "gpu-lost", "message": "GPU 0 on n1 was lost"}]
