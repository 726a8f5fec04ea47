"""The page in a real Chromium: what a person sees, with hostile names and logs."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import expect

from building import CREATED, live_of
from serried.schedulers.interface import Job
from ui.web.browser import chromium

HOSTILE = "<img src=x onerror=alert(1)> $(id) é☃"
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


def test_withoutshown_the_page_says_what_to_type(tab):
    tab.get_by_text("serried submit -- python train.py").wait_for()


def test_the_log_is_followed_and_never_becomes_part_of_the_page(tab, shown):
    tab.get_by_role("link", name="aaaaaa").click()
    tab.get_by_role("link", name="Logs").click()
    log = tab.get_by_role("log")
    expect(log).to_contain_text("10%", timeout=SECONDS)
    assert log.inner_text().split("\n") == ["first line", "<script>alert(1)</script>", "red", "loading 10%"]
    shown.log(0, "\rloading 100%\nlast line\n", append=True)
    expect(log).to_contain_text("last line", timeout=SECONDS)
    assert log.inner_text().split("\n")[3:5] == ["loading 100%", "last line"]


def test_curves_are_drawn_and_grow(tab, shown):
    tab.get_by_role("link", name="aaaaaa").click()
    tab.get_by_role("link", name="Curves").click()
    tab.locator(".plot canvas").wait_for()
    assert tab.locator(".plot h3").all_inner_texts() == ["loss"]
    with shown.attempt().metrics(0, 0).open("a") as file:
        file.write('{"t": 2, "step": 50, "accuracy": 0.5}\n')
    tab.get_by_label("accuracy").check()
    expect(tab.locator(".plot canvas")).to_have_count(2, timeout=SECONDS)


@pytest.mark.usefixtures("shown")
def test_the_heatmap_has_its_figures_beside_it(tab):
    tab.get_by_role("link", name="aaaaaa").click()
    tab.get_by_role("link", name="Usage").click()
    tab.locator("canvas.heatmap").wait_for()
    rows = [re.split(r"\s*\t\s*", row) for row in tab.locator("tbody tr").all_inner_texts()]
    assert rows == [["n0 GPU 0", "50 %", "50 %", "50 %"], ["n0 GPU 1", "51 %", "51 %", "51 %"]]


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
def test_a_narrow_window_has_no_horizontal_bar(tab):
    tab.set_viewport_size({"width": 360, "height": 640})
    tab.get_by_text(HOSTILE).wait_for()
    for part in ("", "run/aaaaaa", "run/aaaaaa/curves", "run/aaaaaa/logs", "run/aaaaaa/plan", "run/aaaaaa/report"):
        tab.evaluate(f"location.hash = '#/{part}'")
        expect(tab.locator("#freshness")).to_contain_text("as of", timeout=SECONDS)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, part


def test_a_wrong_token_says_what_to_open(tab):
    tab.evaluate("sessionStorage.setItem('serried-token', 'wrong')")
    tab.reload()
    tab.get_by_text("open the address that `serried ui` printed last").wait_for()
