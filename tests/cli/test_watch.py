"""`serried watch --once`, and what it says where it cannot draw."""

from __future__ import annotations

import sys

from serried.base.errors import install_hint
from serried.cli import ps
from serried.schedulers.interface import Job
from serried.schema import names
from test_house import modules_after
from watching import a_live, write_live


def running(make, slurm, run="k3f9q2", *, job="123", **options):
    made = make(run, job=job, **options)
    slurm.tell(Job(job, None, names.RUNNING, name=f"train-{run}"))
    return made


def test_once_prints_the_page_of_a_run(serried, make, slurm):
    made = running(make, slurm)
    write_live(made.attempt(), a_live(2, 2, warnings=["rank 3 waits for data 41% of the time"]))
    made.log(0, "epoch 1\nepoch 2\r50%|#####     |")

    done = serried("watch", "k3f9q2", "--once")

    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """\
k3f9q2 train RUNNING  2 nodes, 4 ranks on fir
! rank 3 waits for data 41% of the time
 time   98%  59m00s of 1h00m, 2h50m left
 step   24%  1200 of 5000, 3.1/s, 20m25s left

GPUs 4, mean 93%
GPU    busy  memory G  power W  °C
n01:0  97%   112/140   640/700  61
n01:1  96%   112/140   640/700  61
n02:0  97%   112/140   640/700  61
n02:1  96%   112/140   640/700  61

4 ranks: GPU busy: min 96% at rank 1, max 97% at rank 0, median 96%
rank  node  GPU busy  steps/s  data wait  CPU cores
1     n01   96%       3.1      2%         1.0
3     n02   96%       3.1      2%         1.0
0     n01   97%       3.1      2%         1.0
2     n02   97%       3.1      2%         1.0

output of rank 0 on n01  1 of 4
epoch 1
50%|#####     |
"""
    )


def test_once_prints_the_list_of_runs(serried, make, slurm):
    running(make, slurm)
    make("m2n3p4", job="124").ending("FAILED")

    done = serried("watch", "--once", "--ascii")

    assert done.code == 0
    expected = [["runs", "2"], ["ID", "NAME", "STATE"], ["k3f9q2", "train", "RUNNING"], ["m2n3p4", "train", "FAILED"]]
    assert [line.split()[:3] for line in done.out.splitlines()] == expected


def test_hostile_names_and_output_are_text(serried, make, slurm):
    made = running(make, slurm, name="[red]$(id) \x1b[31m\x07")
    made.attempt()
    made.log(0, b"[bold]no markup\x1b]0;title\x07 \xff\n")
    printed = serried("watch", "k3f9q2", "--once").out
    assert "\x1b" not in printed
    assert "[red]$(id) \\x1b[31m\\x07 RUNNING" in printed
    assert "[bold]no markup" in printed


def test_the_page_and_the_list_have_the_warnings_of_why(serried, make, slurm):
    document = a_live(1, 1)
    document["nodes"][0]["ranks"][0]["metrics"]["loss"] = "nan"
    write_live(running(make, slurm).attempt(), document)

    assert "! `loss` is nan\n" in serried("watch", "k3f9q2", "--once").out
    assert "`loss` is nan" in serried("watch", "--once").out


def test_once_prints_why_a_run_waits(serried, make, slurm):
    make("a7b8c9", job="125")
    slurm.tell(Job("125", None, names.PENDING, name="train-a7b8c9", reason="Priority"))
    done = serried("watch", "a7b8c9", "--once")
    assert (
        done.out
        == """\
a7b8c9 train PENDING  2 nodes, 4 ranks on fir

why it waits
  it waits because of Priority
  reason      Priority
  waits for   1h00m
  expected    no estimate yet

what would start sooner
  - see `serried queue a7b8c9`, which asks the scheduler
"""
    )
    slurm.tell(Job("125", None, names.PENDING, name="train-a7b8c9", reason="Dependency"))
    page = serried("watch", "a7b8c9", "--once").out
    assert ("reason      Dependency" in page, "start sooner" in page) == (True, False)


def test_between_attempts_neither_the_limit_nor_the_progress_of_the_last_one_is_shown(serried, make, slurm):
    run = make("a7b8c9", job="125")
    write_live(run.attempt(), a_live(1, 1))
    run.link(2, "126").ending("REQUEUED", cause="limit", final=False)
    slurm.tell(Job("126", None, names.PENDING, name="train-a7b8c9", reason="Resources"))

    page = serried("watch", "a7b8c9", "--once").out

    assert "a7b8c9 train PENDING" in page
    assert [line for line in page.splitlines() if line.startswith((" time", " step"))] == [" time  1h00m"]


def test_without_a_terminal_it_names_the_option_that_works(serried, monkeypatch):
    done = serried("watch")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: `serried watch` needs a terminal\n\nhint: serried watch --once prints the page once\n"
    monkeypatch.setattr(sys, "stdin", None)  # a closed one
    assert serried("watch").err == done.err


def test_without_textual_it_says_how_to_install_it(serried, monkeypatch):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "serried.views.watch.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.setenv("NO_COLOR", "1")

    done = serried("watch")

    assert done.code != 0
    assert "error: Textual is not installed beside Serried" in done.err
    assert install_hint("watch") in done.err


def test_once_needs_no_textual():
    loaded = modules_after("import serried.cli.ps, serried.views.watch.reader")
    assert "serried.views.watch.reader" in loaded
    assert loaded & {"textual", "asyncio", "rich"} == set()


def test_stopping_is_the_command_itself(monkeypatch):
    """`stop` returns what a user would read last."""
    calls = []
    answers = [
        (0, "k3f9q2 train CANCELLED after 12s\n  warning: no rank has saved\n"),
        (3, "error: the scheduler does not answer\n\nhint: later\n"),
        (9, ""),
    ]

    def run(argv, **_):
        calls.append(argv[1:])
        status, printed = answers[len(calls) - 1]
        return ps.shell.Result(tuple(argv), status, "", f"note: stopping\n{printed}")

    monkeypatch.setattr(ps.shell, "run", run)
    assert [ps.stop("k3f9q2") for _ in answers] == [
        "k3f9q2 train CANCELLED after 12s",
        "error: the scheduler does not answer",
        "`serried stop k3f9q2` ended with exit status 9",
    ]
    assert calls == [["-m", "serried", "stop", "--yes", "k3f9q2"]] * 3
