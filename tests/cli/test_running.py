"""What `show`, `why` and `wait` tell of a run that runs."""

from __future__ import annotations

import io
import json
import sys

import pytest

from building import CREATED, a_live_node, live_of
from serried.schedulers.interface import Job

NOW = CREATED + 3600


@pytest.fixture
def running(make, slurm):
    def begin(document, *, task=None, **plan):
        made = make(**plan)
        slurm.tell(Job("123", task, "RUNNING", nodes=("n1", "n2")))
        return made.live(document, task=task, started=NOW - 754)

    return begin


def page(text):
    """The facts of a page, without what is the same for every run."""
    return text.partition("\n\n")[2].partition("\n\n")[0].splitlines()


def test_show_begins_with_what_the_run_does_now(serried, running):
    slow = a_live_node(1, gpus=(41.0, 97.0))
    running(live_of(NOW - 3, a_live_node(), {**slow, "memory": 60e9, "cpu": 3.5, "age": 45.0}), gpus=2)

    assert page(serried("show", "last").out)[:8] == [
        "  progress    step 1200/5000, loss 0.3123, lr 0.001",
        "  speed       3.1 it/s, 793.6 samples/s, 2% of the time waiting for data",
        "  time left   20m by the rate of its steps, 47m until the limit",
        "  GPUs        4 NVIDIA H200, 82% busy, the least 41%, 112 of 140 GiB, 640 W",
        "  CPUs        15.9 of 32 busy",
        "  memory      55.9 of 64 GiB on n2",
        "  by node     n1: GPUs 94%, 12.4 of 16 CPUs, 8.5 GiB",
        "              n2: GPUs 69%, 3.5 of 16 CPUs, 55.9 GiB, silent for 45s",
    ]


def test_show_of_a_limit_that_comes_before_the_last_step(serried, running):
    running(live_of(NOW - 3, limit_seconds_left=600.0))
    lines = page(serried("show", "last").out)
    assert [line for line in lines if "limit" in line][:2] == [
        "  time left   20m by the rate of its steps, 9m until the limit",
        "  warning     the limit comes in 9m, and the steps need 20m",
    ]


def test_show_of_an_array_has_the_first_running_tasks(serried, make, slurm):
    run = make(indices=range(20))
    for task in range(20):
        slurm.tell(Job("123", task, "RUNNING"))
        run.live(live_of(NOW - 3, a_live_node(step=task)), task=task)
    lines = page(serried("show", "last").out)
    assert lines[:5] == [
        "  progress    task 0: step 0/5000 loss 0.312 3.1 it/s, 26m left",
        "              task 1: step 1/5000 loss 0.312 3.1 it/s, 26m left",
        "              task 2: step 2/5000 loss 0.312 3.1 it/s, 26m left",
        "              task 3: step 3/5000 loss 0.312 3.1 it/s, 26m left",
        "  command     python train.py",
    ]
    assert serried("show", "last", "--tasks").out.splitlines()[1].endswith("step 0/5000 loss 0.312 3.1 it/s, 26m left")
    of_tasks = json.loads(serried("show", "last", "--json").out)["runs"][0]["progress"]["tasks"]
    assert (len(of_tasks), of_tasks["7"]["step"]) == (16, 7)


def test_why_of_a_healthy_run_says_what_it_does(serried, running):
    running(live_of(NOW - 3))
    assert serried("why", "last").out == (
        "k3f9q2 train RUNNING\n"
        "\n"
        "  now     step 1200/5000 loss 0.312 3.1 it/s, 20m left\n"
        "  means   it runs, without a known problem\n"
    )


NO_ADDRESS = "[c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2).\n"


@pytest.mark.parametrize(
    ("step", "after", "advice_for"), [(None, "", "name-unresolved"), (None, "epoch 1\n", ""), (3, "", "")]
)
def test_a_host_without_an_address_matters_only_while_ranks_wait_for_it(serried, running, step, after, advice_for):
    running(live_of(NOW - 3, a_live_node(step=step))).log(0, NO_ADDRESS + after)
    why = json.loads(serried("why", "last", "--json").out)["runs"][0]
    assert (why["advice_for"] or "") == advice_for


def test_a_run_that_hangs_says_so_and_what_to_do(serried, running):
    running(live_of(NOW - 3, a_live_node(step_age=423.0)))
    lines = page(serried("show", "last").out)
    assert lines[:3] == [
        "  progress    step 1200/5000, loss 0.3123, lr 0.001, no step for 7m",
        "  speed       2% of the time waiting for data",
        "  time left   47m until the limit",
    ]
    assert "  warning     no step for 7m" in lines
    assert serried("why", "last").out == (
        "k3f9q2 train RUNNING\n"
        "\n"
        "  now       step 1200/5000 loss 0.312, no step for 7m\n"
        "  warning   no step for 7m\n"
        "\n"
        "  what to do\n"
        "  - it may hang, or save, evaluate or compile: `serried stacks k3f9q2` prints where each rank is\n"
        "  - `serried logs k3f9q2 -f` prints the output; `serried shell k3f9q2` opens a shell on its first node\n"
        "  - end such runs by themselves: `limit.output_timeout`; serried docs hang-or-crash\n"
    )


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        (live_of(NOW - 720), "head-silent", "its head agent has written nothing for 12m"),
        (live_of(NOW - 3, a_live_node(step=None, output_age=431)), "no-output", "no rank has written anything for 7m"),
        (live_of(NOW - 3, a_live_node(metrics={"loss": "nan"})), "not-finite", "`loss` is nan"),
        (live_of(NOW - 3, limit_seconds_left=600), "limit-too-near", "the limit comes in 9m, and the steps need 20m"),
        (live_of(NOW - 3, a_live_node(data_wait=0.4)), "waits-for-data", "ranks wait for data 40% of the time"),
        (
            live_of(NOW - 3, warnings=[{"node": 1, "code": "gpu-lost", "message": "GPU 3 on n2 disappeared"}]),
            "gpu-lost",
            "GPU 3 on n2 disappeared",
        ),
    ],
)
def test_each_doubt_has_a_code_a_sentence_and_a_step(document, code, message, serried, running):
    running(document)
    why = json.loads(serried("why", "last", "--json").out)["runs"][0]
    assert why["warnings"] == [{"code": code, "message": message}]
    assert why["advice"] != []
    assert why["meaning"] is None


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_line_of_wait_moves_between_two_queries(serried, running, slurm, clock, monkeypatch):
    run = running(live_of(NOW))
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def train():
        step = 1200 + int(30 * clock.passed)
        run.live(live_of(NOW + clock.passed, a_live_node(step=step)), started=NOW - 754)

    clock.then = [*[train] * 120, run.ending]
    assert serried("wait", "last").code == 0

    shown = [line for line in screen.getvalue().split("\r\x1b[2K") if "RUNNING" in line]
    assert shown[0] == "k3f9q2 RUNNING: step 1200/5000 loss 0.312 3.1 it/s, 20m left"
    assert len(set(shown)) > 15
    assert len(slurm.polls) < 15
