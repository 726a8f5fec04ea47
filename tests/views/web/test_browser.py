"""The page in a real Chromium: what a person sees, with hostile names and logs."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import expect

from building import CREATED, live_of
from serried.schedulers.interface import Job
from serried.schema.plan import Sweep
from views.web.browser import CONTRAST, chromium

pytestmark = pytest.mark.runs

HOSTILE = "<img src=x onerror=alert(1)> $(id) é☃"
LONG = "x" * 300
SECONDS = 120_000


@pytest.fixture(scope="module")
def _browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(_browser, page):
    """A tab with the list of runs. Errors of the page and dialogs fail the test."""
    context = _browser.new_context(viewport={"width": 1000, "height": 700})
    context.set_default_timeout(SECONDS)
    opened = context.new_page()
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    opened.on("request", lambda request: problems.extend([request.url] * ("127.0.0.1" not in request.url[:20])))
    opened.goto(page.address)
    yield opened
    context.close()
    assert [problem for problem in problems if not problem.startswith("data:")] == []


@pytest.fixture
def shown(make, slurm):
    made = make("aaaaaa", name=HOSTILE, job="1", nodes=1, gpus=2)
    made.live(live_of(time.time()))
    slurm.tell(Job("1", None, "RUNNING"))
    made.log(0, "first line\n<script>alert(1)</script>\n\x1b]0;owned\x07\x1b[31mred\x1b[0m\nloading 10%")
    metrics = made.attempt().metrics(0, 0)
    metrics.write_text("".join(f'{{"t": 1, "step": {step}, "loss": {1 / step}}}\n' for step in range(1, 50)))
    samples = made.attempt().samples(0)
    gpus = {str(gpu): {"busy": [10.0, 50.0 + gpu, 90.0]} for gpu in range(2)}
    about = {"t": CREATED, "host": "n0", "interval": 5.0, "node": {}, "gpus": {}}
    periods = [{"t": CREATED + 30 * at, "seconds": 30.0, "node": {}, "gpus": gpus, "ranks": {}} for at in range(1, 4)]
    samples.write_text("".join(json.dumps(line) + "\n" for line in [about, *periods]))
    make("bbbbbb", name="done").ending()
    return made


@pytest.mark.usefixtures("shown")
def test_the_list_shows_hostile_names_as_text_and_filters(tab):
    tab.get_by_text(HOSTILE).wait_for()
    assert tab.locator("tbody tr").count() == 2
    assert "token" not in tab.url
    assert tab.locator("tbody tr").nth(0).locator("progress").get_attribute("value") == "1200"
    tab.get_by_label("Filter").fill("COMPLETED")
    tab.get_by_text("1 of 2").wait_for()
    assert tab.locator("tbody code").all_inner_texts() == ["bbbbbb"]
    tab.get_by_label("Filter").fill("nothing like this")
    tab.get_by_text("No run matches the filter.").wait_for()


def test_without_runs_the_page_says_what_to_type_and_one_that_never_started_has_no_running_time(tab, make):
    tab.get_by_text("serried submit -- python train.py").wait_for()
    make("aaaaaa").ending("CANCELLED", started=None, seconds=None)
    cell = tab.locator("td.time")
    expect(cell).to_contain_text("ago", timeout=SECONDS)
    assert cell.inner_text().split("\n")[0] == "\u2013"


def test_the_log_is_followed_while_its_end_is_in_view_and_never_becomes_part_of_the_page(tab, shown):
    tab.get_by_role("link", name="aaaaaa").click()
    tab.get_by_role("link", name="Logs").click()
    log = tab.get_by_role("log")
    expect(log).to_contain_text("10%", timeout=SECONDS)
    assert log.inner_text().split("\n") == ["first line", "<script>alert(1)</script>", "red", "loading 10%"]
    shown.log(0, "\rloading 100%\nlast line\n", append=True)
    expect(log).to_contain_text("last line", timeout=SECONDS)
    assert log.inner_text().split("\n")[3:5] == ["loading 100%", "last line"]
    shown.log(0, "".join(f"line {number}\n" for number in range(500)), append=True)
    expect(log).to_contain_text("line 499", timeout=SECONDS)
    left = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight"
    assert log.evaluate(left) < 2
    log.evaluate("(box) => { box.scrollTop = 100; }")
    shown.log(0, "and another\n", append=True)
    expect(log).to_contain_text("and another", timeout=SECONDS)
    assert log.evaluate("(box) => box.scrollTop") == 100
    shown.log(0, "resumed\n", number=2)  # the newest attempt is followed by the next
    shown.live(live_of(time.time()), number=2)
    expect(log).to_have_text("resumed\n", timeout=SECONDS)
    expect(tab.get_by_label("Attempt")).to_have_value("2", timeout=SECONDS)


def test_curves_are_drawn_read_and_zoomed_by_keyboard_and_grow(tab, shown):
    tab.get_by_role("link", name="aaaaaa").click()
    tab.get_by_role("link", name="Curves").click()
    tab.locator(".plot canvas").wait_for()
    assert tab.locator(".plot h2").all_inner_texts() == ["loss"]
    tab.locator(".plot").focus()
    for keys, said in (
        (["ArrowRight", "ArrowRight"], "step 3, loss 0.3333"),
        (["ArrowLeft"], "step 2, loss 0.5"),
        (["+", "ArrowRight", "0", "-"], "step 3, loss 0.3333"),
    ):
        for key in keys:
            tab.keyboard.press(key)
        expect(tab.locator(".plot [role=status]")).to_have_text(said, timeout=SECONDS)
    with shown.attempt().metrics(0, 0).open("a") as file:
        file.write('{"t": 2, "step": 50, "accuracy": 0.5}\n')
    tab.get_by_label("accuracy").check()
    expect(tab.locator(".plot canvas")).to_have_count(2, timeout=SECONDS)


def test_the_overview_the_plan_and_the_usage_of_a_run(tab, shown):
    shown.attempt().metrics(0, 0).write_text('{"t": 1, "step": 1, "a": 1, "loss": 2}\n{"t": 1, "step": 2, "loss": 1}\n')
    tab.evaluate("location.hash = '#/run/aaaaaa'")
    expect(tab.locator(".plot h2")).to_have_text("loss", timeout=SECONDS)
    expect(tab.locator("pre.tail")).to_have_text(
        "first line\n<script>alert(1)</script>\nred\nloading 10%", timeout=SECONDS
    )
    assert tab.locator(".rows .labels li").all_inner_texts() == ["n0 GPU 0", "n0 GPU 1"]
    assert tab.locator(".rows .means li").all_inner_texts() == ["mean 50 %", "mean 51 %"]
    assert tab.locator("progress.steps").get_attribute("value") == "1200"
    assert tab.locator(".figures dt").all_inner_texts() == ["progress", "speed", "time left", "GPUs", "CPUs", "memory"]

    tab.get_by_role("link", name="Plan").click()
    expect(tab.locator("dt").first).to_have_text("command", timeout=SECONDS)
    lines = dict(zip(tab.locator("dt").all_inner_texts(), tab.locator("dd").all_inner_texts(), strict=True))
    assert lines["ranks"] == "2 ranks on 1 node"
    assert lines["each node"] == "2 GPUs, 4 CPUs, the cluster's default memory"
    assert tab.locator("details[open]").count() == 0

    tab.get_by_role("link", name="Usage").click()
    tab.locator("canvas.heatmap").wait_for()
    rows = [re.split(r"\s*\t\s*", row) for row in tab.locator("tbody tr").all_inner_texts()]
    assert rows == [["n0 GPU 0", "10 %", "50 %", "90 %"], ["n0 GPU 1", "10 %", "51 %", "90 %"]]


def test_what_the_user_logged_comes_first_and_later_attempts_are_marked(tab, shown):
    line = '{"t": 1, "step": %d, "serried/peak_memory_bytes": 9, "train/accuracy": 1, "train/loss": 1}\n'
    shown.attempt().metrics(0, 0).write_text("".join(line % step for step in range(1, 50)))
    second = shown.attempt(2).metrics(0, 0)
    second.parent.mkdir(parents=True)
    second.write_text('{"t": 2, "resumed": 30}\n' + "".join(line % step for step in range(31, 60)))
    tab.evaluate("location.hash = '#/run/aaaaaa/curves'")
    expect(tab.locator(".plot h2")).to_have_text(["train/loss", "train/accuracy"], timeout=SECONDS)
    mark = tab.locator(".begin").first
    expect(mark).to_have_text("attempt 2", timeout=SECONDS)
    assert mark.get_attribute("title") == "attempt 2 begins after step 30"
    inside = "(mark) => mark.offsetLeft / mark.parentElement.clientWidth"
    assert mark.evaluate(inside) == pytest.approx(29 / 58, abs=0.01)


def test_labels_of_axes_differ_and_are_whole(tab, shown):
    for values, is_bytes, texts in (
        ([0, 5e7, 1e8], False, ["0", "50M", "100M"]),
        ([0.69314718, 0.69314719], False, ["0.69314718", "0.69314719"]),
        ([0, -2e-5, 1e-4], False, ["0", "-2e-5", "1e-4"]),
        ([0, 2**29, 2**30], True, ["0", "0.5 GiB", "1 GiB"]),
        ([1e18, 2e18], False, ["1e+18", "2e+18"]),
    ):
        found = tab.evaluate("async (given) => (await import('./dom.js')).marks(...given)", [values, is_bytes])
        assert found == texts
    lines = (json.dumps({"t": 1, "step": step, "loss": -123456.7 - step * 1e-5}) for step in range(1, 9))
    shown.attempt().metrics(0, 0).write_text("\n".join(lines) + "\n")
    tab.evaluate("location.hash = '#/run/aaaaaa/curves'")
    tab.locator(".plot canvas").wait_for()
    tab.wait_for_function("""() => {
      const canvas = document.querySelector(".plot canvas"), context = canvas.getContext("2d");
      const drawn = (x, width) => context.getImageData(x, 0, width, canvas.height).data.some((part) => part);
      return drawn(3, 80) && !drawn(0, 3);
    }""")


@pytest.mark.usefixtures("shown")
def test_every_page_is_reached_by_keyboard_alone(tab):
    tab.get_by_text(HOSTILE).wait_for()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(30):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.textContent") == "aaaaaa":
            break
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="aaaaaa").wait_for()
    assert tab.evaluate("document.activeElement.id") == "main"


@pytest.mark.usefixtures("shown")
def test_all_text_stands_out_from_its_background(tab):
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        for part in ("", "run/aaaaaa", "run/aaaaaa/curves", "run/aaaaaa/usage", "run/aaaaaa/logs", "run/zzzzzz"):
            tab.evaluate(f"location.hash = '#/{part}'")
            expect(tab.locator("#freshness")).not_to_be_empty(timeout=SECONDS)
            assert (scheme, part, tab.evaluate(CONTRAST)) == (scheme, part, [])


def test_long_and_hidden_words_stay_inside_the_window_and_in_order(tab, make):
    made = make("ffffff", name=LONG, nodes=1).ending("FAILED", message=f"{LONG} \u202egnorw \x1b[31m")
    made.attempt().metrics(0, 0).parent.mkdir(parents=True)
    made.attempt().metrics(0, 0).write_text(f'{{"t": 1, "step": 1, "{LONG}": 1}}\n{{"t": 1, "step": 2, "{LONG}": 1}}\n')
    for part in ("", "run/ffffff", "run/ffffff/curves", "compare?runs=ffffff"):
        tab.evaluate(f"location.hash = '#/{part}'")
        tab.get_by_text(LONG).first.wait_for()
        if "c" in part:
            tab.locator(".plot canvas").wait_for()
        assert (part, tab.evaluate("document.documentElement.scrollWidth")) == (part, 1000)
    tab.evaluate("location.hash = '#/run/ffffff'")
    tab.get_by_text(f"{LONG} \\u202egnorw \\u001b[31m").first.wait_for()


@pytest.mark.usefixtures("shown")
def test_a_narrow_window_has_no_horizontal_bar(tab):
    tab.set_viewport_size({"width": 360, "height": 640})
    tab.get_by_text(HOSTILE).wait_for()
    for part in ("", "run/aaaaaa", "run/aaaaaa/curves", "run/aaaaaa/logs", "run/aaaaaa/plan", "run/aaaaaa/report"):
        tab.evaluate(f"location.hash = '#/{part}'")
        expect(tab.locator("#freshness")).to_contain_text("updated", timeout=SECONDS)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, part


@pytest.mark.usefixtures("shown")
def test_a_link_in_a_new_tab_and_a_bookmark_need_no_token(tab):
    with tab.context.expect_page() as opened:
        tab.get_by_role("link", name="aaaaaa").click(modifiers=["Control"])
    opened.value.get_by_role("heading", name=HOSTILE).wait_for()
    bookmark = tab.context.new_page()
    bookmark.goto(tab.url.split("#")[0] + "#/run/bbbbbb")
    bookmark.get_by_role("heading", name="done").wait_for()


@pytest.mark.usefixtures("shown")
def test_an_update_moves_neither_the_focus_nor_a_selection(tab):
    for name in ("aaaaaa", "bbbbbb"):
        tab.get_by_role("link", name=name).focus()
        with tab.expect_response(re.compile("api/runs")):
            pass
        with tab.expect_response(re.compile("api/runs")):  # the one before is drawn by now
            pass
        assert tab.evaluate("document.activeElement.textContent") == name
    tab.get_by_role("link", name="aaaaaa").click()
    directory = tab.locator("dd code").last
    directory.select_text()
    with tab.expect_response(re.compile("api/run\\?")):
        pass
    with tab.expect_response(re.compile("api/run\\?")):
        pass
    assert tab.evaluate("String(getSelection())") == directory.inner_text()


def test_an_address_names_the_rank_of_a_log_and_the_choice_of_curves(tab, shown):
    shown.log(1, "this is rank 1\n")
    tab.evaluate("location.hash = '#/run/aaaaaa/logs?rank=1'")
    log = tab.get_by_role("log")
    expect(log).to_contain_text("this is rank 1", timeout=SECONDS)
    shown.log(1, "more of it\n", append=True)
    expect(log).to_have_text("this is rank 1\nmore of it\n", timeout=SECONDS)
    tab.get_by_label("Rank").select_option("0")
    expect(log).to_contain_text("first line", timeout=SECONDS)
    assert tab.url.endswith("#/run/aaaaaa/logs?rank=0")
    tab.evaluate("location.hash = '#/run/aaaaaa/curves'")
    tab.get_by_role("checkbox", name="loss", exact=True).uncheck()
    expect(tab.locator(".plot")).to_have_count(0, timeout=SECONDS)
    tab.get_by_role("checkbox", name="loss", exact=True).check()
    assert tab.url.endswith("#/run/aaaaaa/curves?metric=loss")


def test_an_unknown_run_has_no_empty_tabs(tab):
    tab.evaluate("location.hash = '#/run/zzzzzz/logs'")
    tab.locator("main .error").wait_for()
    expect(tab.get_by_role("navigation", name="Parts of the run")).to_be_hidden(timeout=SECONDS)
    expect(tab.get_by_role("log")).to_be_hidden(timeout=SECONDS)


def test_a_zoom_stays_while_a_curve_grows(tab, shown):
    tab.evaluate("location.hash = '#/run/aaaaaa/curves'")
    plot = tab.locator(".plot .u-over")
    plot.wait_for()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)
    tab.mouse.up()
    step = tab.locator(".u-legend .u-value").first
    box = plot.bounding_box()  # the axis is as wide as its new labels
    tab.mouse.move(box["x"] + 1, box["y"] + 20)
    expect(step).to_have_text(re.compile(r"^2\d$"), timeout=SECONDS)
    with shown.attempt().metrics(0, 0).open("a") as file:
        file.write('{"t": 2, "step": 50, "loss": 0.5}\n')
    for _ in range(2):
        with tab.expect_response(re.compile("api/curves")):
            pass
    tab.mouse.move(box["x"] + 2, box["y"] + 20)
    expect(step).to_have_text(re.compile(r"^2\d$"), timeout=SECONDS)


@pytest.mark.usefixtures("shown")
def test_tasks_of_an_array_have_links(tab, make):
    array = make("cccccc", indices=range(30), nodes=1)
    for task in range(30):
        array.ending("FAILED" if task == 7 else "COMPLETED", task=task, exit_code=int(task == 7))
    tab.evaluate("location.hash = '#/run/cccccc'")
    tab.get_by_role("link", name="7", exact=True).click()
    tab.get_by_text("serried why cccccc/7").wait_for()
    tab.get_by_role("link", name="cccccc").click()
    expect(tab.locator("nav.tabs a:visible")).to_have_text(["Overview", "Plan"], timeout=SECONDS)


def test_runs_are_compared_by_state_settings_and_curve(tab, shown, make):
    other = make("dddddd", name="other", nodes=1, gpus=4).ending("FAILED")
    for made in (shown, other):
        path = made.attempt().metrics(0, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"t": 1, "step": 1, "accuracy": 0.5, "loss": 2}\n{"t": 1, "step": 2, "loss": 0.25}\n')
    for run in ("aaaaaa", "bbbbbb", "dddddd"):
        tab.get_by_label(f"Compare {run}").check()
    tab.get_by_role("button", name="Compare").click()
    tab.get_by_text("Without loss: bbbbbb").wait_for()
    expect(tab.get_by_role("row", name="Last loss")).to_have_text(re.compile("^Last loss0.25.0.25$"), timeout=SECONDS)
    assert tab.get_by_role("row", name="State").inner_text().split() == ["State", "RUNNING", "COMPLETED", "FAILED"]
    assert tab.get_by_role("row", name="allocation.gpus").inner_text().split() == ["allocation.gpus", "2", "0", "4"]
    tab.locator(".plot canvas").wait_for()


def test_trials_are_sorted_by_a_click_and_drawn_by_a_parameter(tab, make):
    made = make("eeeeee", indices=range(3), nodes=1, sweep=Sweep("eeeeee", ("lr", "opt"), "accuracy", "maximize"))
    trials = [{"lr": 0.1, "opt": "sgd"}, {"lr": 0.2, "opt": "<b>adam</b>"}, {"lr": 0.01, "opt": "sgd"}]
    (made.where.path / "trials.json").write_text(json.dumps(trials))
    for task, value in enumerate((0.5, 0.9, 0.7)):
        made.ending(task=task)
        path = made.attempt(task=task).metrics(0, 0)
        path.parent.mkdir(parents=True)
        path.write_text(f'{{"t": 1, "step": 1, "accuracy": {value}}}\n')
    tab.evaluate("location.hash = '#/sweep/eeeeee'")
    expect(tab.locator(".parallel polyline.best title")).to_have_text(
        "eeeeee/1, lr 0.2, opt <b>adam</b>, accuracy 0.9", timeout=SECONDS
    )
    assert tab.locator(".parallel polyline").count() == 3
    trial = tab.locator("tbody tr td:first-child")
    expect(trial).to_have_text(["eeeeee/1", "eeeeee/2", "eeeeee/0"], timeout=SECONDS)
    tab.get_by_role("button", name="lr").click()
    expect(trial).to_have_text(["eeeeee/2", "eeeeee/0", "eeeeee/1"], timeout=SECONDS)
    tab.keyboard.press("Enter")
    expect(trial).to_have_text(["eeeeee/1", "eeeeee/0", "eeeeee/2"], timeout=SECONDS)
    assert tab.url.endswith("?sort=-lr&parameter=lr")
    tab.get_by_label("Parameter").select_option("opt")
    tab.locator(".plot canvas").wait_for()


def test_a_wrong_token_says_what_to_open_which_serves_all_tabs(tab, page):
    tab.evaluate("sessionStorage.setItem('serried-token', 'wrong')")
    tab.reload()
    tab.get_by_text("open the address that `serried watch --web` printed last").wait_for()
    tab.context.new_page().goto(page.address)
    tab.get_by_text("You have no runs yet.").wait_for()
