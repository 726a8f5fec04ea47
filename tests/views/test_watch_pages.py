"""What a page of `serried watch` says: its lines, meters, tables and curve, and the same on terminals of any size."""

from __future__ import annotations

import asyncio
import math

from house import ROOT
from serried.records import live
from serried.records.samples import Period
from serried.views.console import Cell
from serried.views.run_files import shown_first
from serried.views.watch import pages
from serried.views.watch.app import WatchApp
from serried.views.watch.pages import RunPage, RunRow
from serried.views.watch.reader import Pages, sampled_metrics
from tables import for_each
from watching import a_live, a_page

HOSTILE = "[red]$(id)[/red] \x1b[31m\x1b]0;title\x07 名前 " + "n" * 300
STEP = Cell("step 1200/5000 loss 0.31 3.1 it/s", None, "20m left", ("step 1200/5000 loss 0.31", "step 1200/5000"))
ROWS = (
    RunRow("k3f9q2", "train", "RUNNING", "2x4 gpu", "1h12m", STEP, "digits"),
    RunRow("m2n3p4", "lr-sweep", "RUNNING", "1x1 gpu", "3m07s", Cell("12/96 done"), "digits"),
    RunRow("a7b8c9", "large", "PENDING", "16x8/4 gpu", "2d03h", Cell("Priority, starts in 3h12m"), "digits"),
    RunRow("q9r8s7", "train", "FAILED", "2x4 gpu", "12s", Cell("rank 3 on n2 exited with status 1"), "digits"),
)


def texts(cells):
    return "".join(cell.text for cell in cells)


def meters(page):
    return {meter.label: texts(meter.texts) for meter in page.meters}


def test_the_page_of_a_training():
    page = a_page()
    assert [*map(texts, page.head)] == [
        "k3f9q2 train RUNNING  2 nodes, 8 GPUs on fir",
        "! rank 3 waits for data 41% of the time",
    ]
    assert meters(page) == {"time": "1h12m of 4h00m, 2h49m left", "step": "1200 of 5000, 3.1/s, 20m24s left"}
    title, table = page.table(0)
    assert (title, table.heads) == ("GPUs 8, mean 93%", ("GPU", "busy", "last 3m00s", "memory G", "power W", "°C"))
    assert [cell.text for cell in table.rows[3]] == ["n01:3", "4%", "▆▇▇██▄", "112/140", "140/700", "61"]
    assert page.curve(0)[::2] == ("loss 0.3436  1 of 2", "0.1521 to 2.724, steps 0 to 1200")
    assert page.log_title == "output of rank 0 on n01  1 of 2"


def test_a_failed_run_says_why_and_what_to_do():
    steps = ("serried logs k3f9q2 --rank 3",)
    page = a_page({}, state="FAILED", message="rank 3 exited with status 1", elapsed=12.0, has_ended=True, steps=steps)
    assert [*map(texts, page.head)][1:] == ["  rank 3 exited with status 1", "  - serried logs k3f9q2 --rank 3"]
    assert meters(page) == {"time": "12s of 4h00m"}


def test_the_straggler_of_512_ranks_is_named_and_comes_first():
    page = a_page(a_live(64, 8, slow=100))
    assert page.rank_summary(0) == "512 ranks: GPU busy: min 4% at rank 100, max 97% at rank 0, median 94%"
    title, table = page.table(3)
    assert title == "ranks by data wait"
    assert [cell.text for cell in table.rows[0]] == ["100", "n13", "4%", "3.1", "41%", "1.0"]
    assert page.rank_summary(3) == "512 ranks: data wait: max 41% at rank 100, min 2% at rank 0, median 2%"
    assert page.table(5)[0].startswith("GPUs 512")


@for_each(("step_age", "shown"), [(0.4, ""), (5.0, ""), (6.0, ", last 7s ago"), (480.0, ", last 8m01s ago")])
def test_the_last_step_has_an_age_once_it_is_older_than_the_file_explains(step_age, shown):
    document = a_live(1, 2)
    for rank in document["nodes"][0]["ranks"]:
        rank["step_age"] = step_age
    page = a_page(document)
    assert meters(page)["step"].startswith(f"1200 of 5000{shown}")
    assert (page.meters[1].texts[1].style == "bad") == (step_age > 60)


def test_a_bar_without_a_whole_and_a_time_without_a_value_are_left_out():
    document = a_live(1, 1)
    del document["nodes"][0]["ranks"][0]["total_steps"]
    page = a_page(document, limit=None)
    assert (meters(page), [meter.share for meter in page.meters]) == (
        {"time": "1h12m", "step": "1200, 3.1/s"},
        [None, None],
    )
    assert a_page({}, elapsed=None).meters == []


def test_a_head_that_does_not_report_is_stale_by_the_interval_of_its_file():
    document = live.parse(a_live() | {"interval": 30.0})
    assert document is not None
    assert [live.RunProgress(document, age).is_stale for age in (100.0, 200.0)] == [False, True]


@for_each(
    ("points", "values", "extent"),
    [
        ([(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 2.0)], (1.0, 2.0), "1 to 2, steps 0 to 3"),
        ([(0.0, math.nan)], (), "no value so far"),
        ([(7.0, 1e9)], (1e9,), "1.0e+09 to 1.0e+09, steps 7 to 7"),
        ([(0.0, -1.7e308), (1.0, 1.7e308)], (-1.7e308, 1.7e308), "-1.7e+308 to 1.7e+308, steps 0 to 1"),
    ],
)
def test_values_of_a_curve_that_are_not_finite_are_left_out(points, values, extent):
    assert a_page(curves={"loss": points}).curve(0)[1:] == (values, extent)


def test_a_sampled_loss_of_nan_has_a_curve_and_a_metric_named_step_has_none():
    sampled = {"0": {"step": 7, "metrics": {"loss": "nan", "step": 7}}}
    curves = sampled_metrics([Period(1.0, 30.0, {}, {}, sampled)])
    assert [*curves] == ["loss"]
    assert a_page(curves=curves).curve(0)[1:] == ((), "no value so far")


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
    ordered = shown_first(("serried/step_seconds", "lr", "val_loss", "accuracy"), wanted)
    assert ordered[0] == first
    assert ordered[-1] == "serried/step_seconds" or wanted == first


def test_a_filter_takes_words_of_id_name_state_and_project():
    words = {"TRAIN fail": ["q9r8s7"], "pend": ["a7b8c9"], "m2n": ["m2n3p4"], "digits large": ["a7b8c9"], "nothing": []}
    assert {word: [row.id for row in ROWS if row.matches(word)] for word in words} == words


@for_each(("values", "drawn"), [([0.0, 50.0, 100.0], "▁▅█"), ([None, 150.0, -1.0], "·█▁"), ([], "")])
def test_blocks(values, drawn):
    assert pages.blocks(values, 0.0, 100.0) == drawn
    assert pages.in_ascii(drawn) == drawn.translate(str.maketrans("▁▅█·", ".+@?"))


DAMAGED = [
    a_live() | {"nodes": "no list"},
    a_live() | {"nodes": [None, 3, {"gpus": [{"gpu": "x", "busy": "hot"}], "ranks": [{"rank": None, "step": []}]}]},
    a_live() | {"t": 9e12, "interval": -1, "ranks": 1e300, "warnings": [1, {"message": None}]},
    a_live() | {"t": None},
    {"schema": 99},
]
WAITING = RunPage("a7b8c9", HOSTILE, "PENDING", facts=(("why it waits", (HOSTILE, HOSTILE)),))


def screen_of(app):
    lines = ("".join(one.text for one in strip).rstrip() for strip in app.screen._compositor.render_strips())
    return "\n".join(lines) + "\n"


def drawn(monkeypatch, size, shown):
    """The screens of these pages."""
    screens = []

    async def look():
        app = WatchApp("k3f9q2", lambda _: "")
        monkeypatch.setattr(app.reader, "start", lambda: None)
        async with app.run_test(size=size) as pilot:
            for page in shown:
                app.reader.pages = Pages(of="k3f9q2", page=page, is_read=True)
                app.show_again()
                await pilot.pause()
                before = ""
                while before != (before := screen_of(app)):
                    await pilot.pause(0.3)
                screens.append(before)

    asyncio.run(look())
    return screens


def test_the_documentation_shows_the_page_as_it_is(monkeypatch):
    [screen] = drawn(monkeypatch, (80, 24), [a_page()])
    assert f"```text\n{screen}```" in (ROOT / "docs" / "guides" / "watching.md").read_text(encoding="utf-8")


def test_a_page_is_shown_on_a_terminal_of_any_size_and_hostile_text_is_text(monkeypatch):
    warned = a_live(1, 4, warnings=[HOSTILE])
    hostile = a_page(warned, size=HOSTILE, log_lines=(HOSTILE,) * 50, logs=(HOSTILE,), message=HOSTILE)
    for size in ((1, 1), (20, 5), (200, 60)):
        screens = drawn(monkeypatch, size, [hostile, WAITING])
        assert (size, "\x1b" in "".join(screens)) == (size, False)
    assert [screen.count("[red]$(id)[/red] \\x1b[31m") > 1 for screen in screens] == [True, True]


@for_each("document", DAMAGED)
def test_a_damaged_live_file_still_gives_a_page(document):
    assert pages.printed_run(a_page(document), 24)[0] == "k3f9q2 train RUNNING  2 nodes, 8 GPUs on fir"
