"""The pages of `serried watch` as text.

`RENEW_SCREENS=1 .venv/bin/pytest tests/ui -k watch` writes them again to tests/ui/screens. Canvas at the difference.
"""

from __future__ import annotations

import dataclasses
import math

import pytest

from house import ROOT
from serried.records import live
from serried.ui.console import Cell
from serried.ui.text import width
from serried.ui.watch import facts, list_page, run_page, waiting_page
from serried.ui.watch.drawing import Canvas, plain
from serried.ui.watch.list_page import ListPage, RunRow
from serried.ui.watch.run_page import Choice
from serried.ui.watch.waiting_page import WaitingPage
from tables import for_each
from watching import a_live, a_page, matches, screen

DOCS = ROOT / "docs" / "watch.md"
HOSTILE = "[red]$(id)[/red] \x1b[31m\x1b]0;title\x07 名前 " + "n" * 300

STEP = Cell("step 1200/5000 loss 0.31 3.1 it/s", None, "20m left", ("step 1200/5000 loss 0.31", "step 1200/5000"))
FAILURE = Cell("rank 3 on n2 exited with status 1", None, "5m ago")
ROWS = (
    RunRow("k3f9q2", "train", "RUNNING", "2x4 gpu", "1h12m", STEP, "digits"),
    RunRow("m2n3p4", "lr-sweep", "RUNNING", "1x1 gpu", "3m07s", Cell("12/96 done"), "digits"),
    RunRow("a7b8c9", "large", "PENDING", "16x8/4 gpu", "2d03h", Cell("Priority, starts in 3h12m"), "digits"),
    RunRow("q9r8s7", "train", "FAILED", "2x4 gpu", "12s", FAILURE, "digits"),
    RunRow("z2y3x4", "train", "COMPLETED", "2x4 gpu", "10m00s", Cell("", "quiet", "3d ago"), "digits"),
)
TASKS = (
    RunRow("k3f9q2/1", "grid", "RUNNING", note=STEP),
    RunRow("k3f9q2/2", "grid", "FAILED", note=Cell("rank 0 on n1 exited with status 1")),
)
WAITING = WaitingPage(
    "a7b8c9",
    "large",
    "PENDING",
    size="16 nodes, 128 GPUs on fir",
    why="other jobs in the queue come first",
    reason="Priority",
    waited=183_600.0,
    starts=None,
    ahead="12 jobs, as of 40s ago",
    sooner=(
        "`--nodes 8` fits what is free now in gpu",
        "`--time 3h` fits before the next job ahead is expected to start",
    ),
)

SCREENS = {
    "run": lambda look: run_page.draw(a_page(), Choice(), look),
    "run-accuracy-and-data-wait": lambda look: run_page.draw(a_page(), Choice(quantity=2, metric=1), look),
    "run-only-output": lambda look: run_page.draw(a_page(), Choice(is_log_only=True), look),
    "run-512-ranks": lambda look: run_page.draw(a_page(a_live(64, 8, slow=100)), Choice(first_gpu=98), look),
    "run-without-measurements": lambda look: run_page.draw(a_page({}, curves={}), Choice(), look),
    "run-failed": lambda look: run_page.draw(FAILED, Choice(), look),
    "runs": lambda look: list_page.draw(ListPage("runs", ROWS, "a7b8c9"), look),
    "runs-filtered": lambda look: list_page.draw(ListPage("runs", ROWS, "k3f9q2", "train", is_typing=True), look),
    "tasks": lambda look: list_page.draw(ListPage("tasks of k3f9q2", TASKS, "k3f9q2/1", is_inner=True), look),
    "no-runs": lambda look: list_page.draw(ListPage("runs", ()), look),
    "waiting": lambda look: waiting_page.draw(WAITING, look),
}
FAILED = a_page(
    {},
    state="FAILED",
    message="rank 3 on n2 exited with status 1; the program itself ended with an error",
    elapsed=12.0,
    has_ended=True,
    steps=("serried logs k3f9q2 --rank 3", "try it here: serried run --ranks 8 -- python train.py"),
    log_lines=("Traceback (most recent call last):", '  File "train.py", line 7', "RuntimeError: no"),
)


@for_each("name", sorted(SCREENS))
def test_a_page_looks_as_it_did_on_80_columns_and_24_rows(name):
    assert matches(name, screen(SCREENS[name](Canvas())))


def test_the_documentation_shows_the_page_as_it_is():
    assert f"```text\n{screen(SCREENS['run'](Canvas()))}```" in DOCS.read_text(encoding="utf-8")


@for_each("name", ["run", "run-512-ranks", "runs"])
def test_a_page_needs_no_more_than_ascii(name):
    text = screen(SCREENS[name](Canvas(ascii=True)))
    assert text.isascii()
    assert matches(f"{name}-ascii", text)


def test_a_larger_terminal_shows_more():
    assert matches("run-130x45", screen(run_page.draw(a_page(a_live(2, 8)), Choice(), Canvas(130, 45))))


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 5), (1, 1), (200, 60)])
def test_every_page_has_the_size_of_its_terminal_whatever_it_shows(size):
    look = Canvas(*size)
    pages = {
        **{name: draw(look) for name, draw in SCREENS.items()},
        "hostile": run_page.draw(
            a_page(
                a_live(1, 4, warnings=[HOSTILE]),
                size=HOSTILE,
                log_lines=(HOSTILE,) * 50,
                logs=(HOSTILE,),
                message=HOSTILE,
            ),
            Choice(),
            look,
        ),
        "hostile list": list_page.draw(
            ListPage(HOSTILE, (RunRow(HOSTILE, HOSTILE, "FAILED", note=Cell(HOSTILE, None, HOSTILE)),), HOSTILE), look
        ),
    }
    assert {name: len(lines) for name, lines in pages.items() if len(lines) != look.rows} == {}
    if look.columns >= 80:
        texts = {name: [plain(line) for line in lines] for name, lines in pages.items()}
        assert {name: line for name, lines in texts.items() for line in lines if width(line) > look.columns} == {}
        assert {name for name, lines in texts.items() if "\x1b" in "".join(lines)} == set()


@for_each(
    "document",
    [
        a_live(warnings=[]) | {"nodes": "no list"},
        a_live() | {"nodes": [None, 3, {"gpus": [{"gpu": "x", "busy": "hot"}], "ranks": [{"rank": None, "step": []}]}]},
        a_live() | {"t": 9e12, "interval": -1, "ranks": 1e300, "warnings": [1, {"message": None}]},
        a_live() | {"t": None},
        {"schema": 99},
    ],
)
def test_a_damaged_live_file_still_gives_a_page(document):
    assert len(run_page.draw(a_page(document), Choice(), Canvas())) == 24


def test_a_training_without_a_step_for_minutes_shows_how_long():
    document = a_live(1, 2)
    for rank in document["nodes"][0]["ranks"]:
        rank["step_age"] = 480.0
    page = a_page(document)
    *_, step = run_page.header(page, Canvas())[:3]
    assert plain(step).endswith("1200 of 5000, last 8m01s ago")
    assert step[-1].style == "bad"


def test_a_head_that_does_not_report_is_stale_by_the_interval_of_its_file():
    document = live.parse(a_live() | {"interval": 30.0})
    assert document is not None
    assert [live.RunProgress(document, age).is_stale for age in (100.0, 200.0)] == [False, True]


def test_values_of_a_curve_that_are_not_finite_are_left_out():
    page = a_page(curves={"loss": [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 2.0)]})
    assert "nan" not in screen(run_page.draw(page, Choice(), Canvas()))


@for_each(
    ("selected", "rows", "word", "now_selected"),
    [
        ("q9r8s7", (ROWS[3], *ROWS[:3]), "", "q9r8s7"),
        ("q9r8s7", ROWS[:3], "", "a7b8c9"),
        ("", ROWS, "", "k3f9q2"),
        ("k3f9q2", (*ROWS[1:], dataclasses.replace(ROWS[0], state="COMPLETED")), "running", "m2n3p4"),
        ("k3f9q2", (), "", "k3f9q2"),
    ],
)
def test_a_selection_stays_with_its_run_or_goes_to_the_row_in_its_place(selected, rows, word, now_selected):
    before = ListPage("runs", ROWS if selected else (), selected, word)
    assert list_page.refreshed(before, rows).selected == now_selected


def test_a_filter_takes_words_of_id_name_state_and_project():
    words = {"TRAIN fail": ["q9r8s7"], "pend": ["a7b8c9"], "m2n": ["m2n3p4"], "digits large": ["a7b8c9"], "nothing": []}
    assert {word: [row.id for row in ROWS if row.matches(word)] for word in words} == words


@for_each(("step_age", "shown"), [(0.4, ""), (5.0, ""), (6.0, ", last 7s ago")])
def test_the_last_step_has_an_age_once_it_is_older_than_the_file_explains(step_age, shown):
    document = a_live(1, 1)
    document["nodes"][0]["ranks"][0]["step_age"] = step_age
    _, _, step = run_page.header(a_page(document), Canvas())
    assert plain(step).endswith(f"1200 of 5000{shown}, 3.1/s, 20m24s left")


def test_a_bar_without_a_whole_and_a_time_without_a_value_are_left_out():
    document = a_live(1, 1)
    del document["nodes"][0]["ranks"][0]["total_steps"]
    page = a_page(document, limit=None)
    assert [plain(drawn) for drawn in run_page.header(page, Canvas())[1:]] == [" time  1h12m", " step  1200, 3.1/s"]
    assert [plain(drawn) for drawn in run_page.header(a_page({}, elapsed=None), Canvas())[1:]] == []


def test_a_narrow_footer_keeps_whole_keys_help_and_the_end():
    keys = plain(run_page.draw(a_page(), Choice(), Canvas(60, 20))[-1]).rstrip()
    assert keys == "esc back  left right rank  m metric  h map  ? help  q quit"


@for_each(
    ("wanted", "first"),
    [
        ("", "val_loss"),
        ("accuracy", "accuracy"),
        ("unknown", "val_loss"),
        ("serried/step_seconds", "serried/step_seconds"),
    ],
)
def test_the_first_curve_is_the_metric_of_the_plan_or_the_loss(wanted, first):
    curves = {name: [] for name in ("serried/step_seconds", "lr", "val_loss", "accuracy")}
    ordered = list(facts.in_order(curves, wanted))
    assert ordered[0] == first
    assert ordered[-1] == "serried/step_seconds" or wanted == first


def test_a_run_whose_record_cannot_be_read_does_not_wait():
    page = WaitingPage("k3f9q2", "?", "UNKNOWN", why="plan.json cannot be read")
    text = screen(waiting_page.draw(page, Canvas()))
    assert ("why it waits" in text, "expected" in text, "plan.json cannot be read" in text) == (False, False, True)
