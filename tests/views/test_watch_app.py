"""`serried watch` on a terminal of 80x24, driven by keys, with run directories on disk and a scheduler in memory."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time

import pytest
from textual.events import Paste

from building import A_SCRIPT, CREATED, RunOnDisk, a_failure
from fake_scheduler import FakeScheduler
from serried import schedulers
from serried.records import index
from serried.records.status import statuses
from serried.schedulers.interface import Job
from serried.schema import names
from serried.views.watch import app as watch_app
from serried.views.watch import reader as watch_reader
from serried.views.watch.app import DARK, LIGHT, Dialog, WatchApp
from watching import a_live, write_live

SECONDS = 120.0


@pytest.fixture
def slurm(monkeypatch):
    fake = FakeScheduler()
    monkeypatch.setattr(schedulers, "get", fake)
    return fake


@pytest.fixture
def make(tmp_path, slurm):
    def make(run="k3f9q2", state=names.RUNNING, *, job="123", **options):
        made = RunOnDisk(tmp_path / "scratch", run, job=job, **options)
        slurm.tell(
            Job(job, None, state, name=f"{made.plan.name}-{run}", reason="Priority" if state == names.PENDING else "")
        )
        return made

    return make


def text_of(app):
    """The screen as plain text, dialogs included."""
    app.screen.refresh()
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return (
        "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines[:height])
        + f"\n{width}x{height}"
    )


def drive(test, selection=None, stop=lambda _: "stopped", **options):
    """Runs the app, and `test(app, pilot, wait_for)` beside it."""

    async def main():
        app = WatchApp(selection, stop, **options)
        async with app.run_test(size=(80, 24), notifications=True) as pilot:

            async def wait_for(condition, what=""):
                deadline = time.monotonic() + SECONDS
                while not (found := condition()):
                    assert time.monotonic() < deadline, f"{what}\n{text_of(app)}"
                    await pilot.pause(0.05)
                return found

            await test(app, pilot, wait_for)
        return app

    return asyncio.run(main())


def test_it_lists_runs_opens_one_and_comes_back(make, slurm):
    make("k3f9q2").attempt()
    make("a7b8c9", names.PENDING, job="124", name="large")

    async def look(app, pilot, wait_for):
        began = time.monotonic()
        await wait_for(lambda: "a7b8c9  large  PENDING" in text_of(app))
        assert text_of(app).index("k3f9q2") < text_of(app).index("a7b8c9")
        await pilot.press("down", "enter")
        await wait_for(lambda: "why it waits" in text_of(app))
        await wait_for(lambda: "reason      Priority" in text_of(app))
        await pilot.press("escape")
        await wait_for(lambda: app.grid.selected == "a7b8c9")
        await pilot.press("enter", "right", "m", "h", "escape", "enter", "escape")
        # Opening, closing and choosing ask the scheduler nothing more: the shortest interval is two seconds.
        assert len(slurm.polls) <= 2 + (time.monotonic() - began) / 2

    drive(look)


def test_it_shows_what_a_run_does_and_follows_its_output(make):
    made = make()
    write_live(made.attempt(), a_live(2, 2))
    made.log(0, "epoch 1\n10%|#   |\r20%|##  |\r30%|### |")
    made.log(1, b"\x1b[31mred\x1b[0m \x1b]0;title\x07[bold]not markup[/bold] \xff\x00 end\n")
    made.journal({"t": 1.0, "step": 1}, node=0)

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "30%|### |" in text_of(app))
        assert "10%" not in text_of(app)
        assert "1200 of 5000" in text_of(app)
        assert "GPUs 4, mean 93%" in text_of(app)
        made.log(0, "\r40%|####|\nepoch 2\n", append=True)
        await wait_for(lambda: "epoch 2" in text_of(app))
        await pilot.press("right")
        await wait_for(lambda: "output of rank 1" in text_of(app))
        await wait_for(lambda: "red [bold]not markup[/bold]" in text_of(app))
        assert "\x1b" not in text_of(app)

    drive(look, index.find("k3f9q2"))


def test_an_end_that_another_reader_records_during_a_query_is_shown_by_the_next(make, monkeypatch):
    made = make()
    made.attempt()

    def end_meanwhile(records):
        found = statuses(records)
        made.ending()
        statuses(index.records())
        return found

    reader = watch_reader.Reader()
    monkeypatch.setattr(watch_reader, "statuses", end_meanwhile)
    assert [row.state for row in reader.read_once(watch_reader.Shown()).rows] == [names.RUNNING]
    assert [row.state for row in reader.read_once(watch_reader.Shown()).rows] == [names.COMPLETED]


def test_a_selection_stays_with_its_run_while_others_come_and_go(make):
    make("k3f9q2", names.PENDING)
    make("m2n3p4", names.PENDING, job="124")

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "m2n3p4" in text_of(app))
        await pilot.press("end")
        selected = await wait_for(lambda: next((it for it in ("k3f9q2", "m2n3p4") if app.grid.selected == it), None))
        make("zznew3", job="125")
        await wait_for(lambda: "zznew3" in text_of(app))
        assert app.grid.selected == selected

    drive(look)


def test_a_filter_is_typed_kept_and_dropped(make):
    make("k3f9q2", name="train")
    make("m2n3p4", name="queue", job="124")

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "m2n3p4" in text_of(app))
        await pilot.press("slash", "q", "u")
        await wait_for(lambda: "k3f9q2" not in text_of(app))
        await pilot.press("enter")
        await wait_for(lambda: app.grid.selected == "m2n3p4")
        await pilot.press("enter")
        await wait_for(lambda: "m2n3p4 queue RUNNING" in text_of(app))
        await pilot.press("escape")
        await wait_for(lambda: "runs  1 of 2  /qu" in text_of(app))
        await pilot.press("escape")
        await wait_for(lambda: "k3f9q2" in text_of(app))

    assert drive(look).return_code is None


def test_a_run_that_is_deleted_while_it_is_shown_is_called_deleted(make):
    made = make()
    made.attempt()

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "k3f9q2 train RUNNING" in text_of(app))
        shutil.rmtree(made.where.path)
        await wait_for(lambda: "! the run directory was removed, and its output with it" in text_of(app))
        shutil.rmtree(made.record.directory.path)
        await wait_for(lambda: "the record of k3f9q2 was deleted" in text_of(app))
        await pilot.press("S", "escape")
        await wait_for(lambda: "no runs yet" in text_of(app))

    drive(look, index.find("k3f9q2"))


def test_a_run_is_stopped_only_after_a_confirmation(make, monkeypatch):
    make()
    runs, has_stopped = [], threading.Event()

    def stop(run):
        runs.append(run)
        has_stopped.set()
        return f"{run} was stopped by the test"

    async def look(app, pilot, wait_for):
        await wait_for(lambda: app.grid.selected == "k3f9q2")
        monkeypatch.setattr(watch_app, "CONFIRM_AFTER_SECONDS", 0.0)
        for answer in ("n", "enter", "escape", "y"):
            assert runs == []
            await pilot.press("S")
            await wait_for(lambda: "stop k3f9q2 (train, RUNNING)?" in text_of(app))
            await pilot.press(answer)
            await wait_for(lambda: not isinstance(app.screen, Dialog))
        await wait_for(has_stopped.is_set)
        await wait_for(lambda: "was stopped by the test" in text_of(app))
        monkeypatch.setattr(watch_app, "CONFIRM_AFTER_SECONDS", 1e6)
        await pilot.press("S", "y", "y", "enter")  # keys that come at once confirm nothing
        await wait_for(lambda: isinstance(app.screen, Dialog))
        await pilot.press("ctrl+c")

    drive(look, stop=stop)
    assert runs == ["k3f9q2"]


def test_pasted_text_is_no_command_and_themes_and_help_have_keys(make):
    make()
    runs = []

    async def look(app, pilot, wait_for):
        await wait_for(lambda: app.grid.selected == "k3f9q2")
        assert app.theme == DARK
        await pilot.press("t")
        await wait_for(lambda: app.theme == LIGHT)
        await pilot.press("question_mark")
        await wait_for(lambda: "stop the run, as `serried stop`" in text_of(app))
        await pilot.press("x", "y")
        await wait_for(lambda: not isinstance(app.screen, Dialog))
        app.post_message(Paste("Sy\nq"))
        await pilot.pause()
        assert app.grid.selected == "k3f9q2"
        await pilot.press("slash")
        app.post_message(Paste("trai\nq"))
        await wait_for(lambda: "/trai" in text_of(app))

    drive(look, stop=lambda run: runs.append(run) or "")
    assert runs == []


def test_ascii_holds_for_dialogs_too(make):
    make(name="名前")

    async def look(app, pilot, wait_for):
        await wait_for(lambda: app.grid.selected == "k3f9q2")
        await pilot.press("S")
        await wait_for(lambda: "stop k3f9q2" in text_of(app))
        assert text_of(app).isascii()

    drive(look, ascii_only=True)


def test_a_scheduler_that_does_not_answer_delays_no_key(make, slurm):
    make("k3f9q2")
    answers = threading.Event()
    real = slurm.poll

    def poll(ids, since=None):
        answers.wait(SECONDS)
        return real(ids, since)

    slurm.poll = poll

    async def wait_for_the_answer(app, _, wait_for):
        await wait_for(lambda: "asking the scheduler about k3f9q2" in text_of(app))

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "asking the scheduler" in text_of(app))
        await pilot.press("question_mark")
        await wait_for(lambda: "quit; runs continue" in text_of(app))
        await pilot.press("x", "q")

    drive(look)
    drive(wait_for_the_answer, index.find("k3f9q2"))
    answers.set()


def test_an_error_of_a_reading_thread_ends_it_and_is_kept(make, slurm):
    make()

    def poll(ids, since=None):
        raise ZeroDivisionError(str((ids, since)))

    slurm.poll = poll

    async def look(app, _, wait_for):
        await wait_for(lambda: app.crash is not None)

    assert isinstance(drive(look).crash, ZeroDivisionError)


def test_records_that_cannot_be_read_for_a_moment_are_a_notice(make, slurm):
    make()
    real, is_away = slurm.poll, True

    def poll(ids, since=None):
        if is_away:
            raise OSError(116, "Stale file handle")
        return real(ids, since)

    slurm.poll = poll

    async def look(app, _, wait_for):
        nonlocal is_away
        await wait_for(lambda: "the records cannot be read: [Errno 116] Stale file handle" in text_of(app))
        is_away = False
        await wait_for(lambda: app.grid.selected == "k3f9q2")
        assert "cannot be read" not in text_of(app)

    assert drive(look).crash is None


def test_a_job_script_has_its_own_output_and_that_of_the_ranks_it_launched(make):
    made = make(script=A_SCRIPT)
    made.attempt().script_log.write_text("hello from the script\n")
    made.launch("1", "srun", "python", "train.py").launched("1", [0, 1], ends=(None,), text="hello from a rank\n")

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "output of the script" in text_of(app))
        assert "hello from the script" in text_of(app)
        await pilot.press("right")
        await wait_for(lambda: "output of rank 0 on node 0, launch 1" in text_of(app))
        await wait_for(lambda: "hello from a rank" in text_of(app))

    drive(look, index.find("k3f9q2"))


def test_a_failed_run_shows_the_output_of_the_rank_that_failed_first(make):
    made = make(shares_logs=True).ending("FAILED", first_failure=a_failure(3, tail=["no"]))
    made.log(0, "rank 0 was fine\n").log(3, "RuntimeError: no\n")

    async def look(app, pilot, wait_for):
        await wait_for(lambda: "output of ranks 2-3 on n2" in text_of(app))
        assert "RuntimeError: no" in text_of(app)
        assert "k3f9q2 train FAILED" in text_of(app)
        await pilot.press("left", "S")
        await wait_for(lambda: "output of rank" in text_of(app) and "of ranks 2-3 on" not in text_of(app))
        await wait_for(lambda: "k3f9q2 has ended: FAILED" in text_of(app))

    drive(look, index.find("k3f9q2"))


def test_a_failed_run_opens_the_own_log_of_its_failed_rank(make):
    make().ending("FAILED", first_failure=a_failure(3)).log(0, "fine\n").log(3, "RuntimeError: no\n")
    page = watch_reader.Reader().read_once(watch_reader.Shown(index.find("k3f9q2"))).page
    assert (page.log_title, page.log_lines) == ("output of rank 3 on n2  4 of 4", ("RuntimeError: no",))


def test_the_tasks_of_an_array_are_a_list_of_their_own(make, slurm):
    made = make("k3f9q2", indices=range(3), name="grid")
    for task, state in enumerate((names.COMPLETED, names.RUNNING, names.PENDING)):
        slurm.tell(Job("123", task, state, name="grid-k3f9q2"))
    made.ending(task=0)
    made.attempt(task=1, started=CREATED)
    made.log(0, "hello from task 1\n", task=1)

    async def look(app, pilot, wait_for):
        await wait_for(lambda: app.grid.selected == "k3f9q2")
        await pilot.press("enter")
        await wait_for(lambda: "tasks of k3f9q2" in text_of(app))
        await wait_for(lambda: app.grid.selected == "k3f9q2/1")
        await pilot.press("enter")
        await wait_for(lambda: "hello from task 1" in text_of(app))
        await pilot.press("escape", "escape")
        await wait_for(lambda: "runs  1" in text_of(app) and app.grid.selected == "k3f9q2")

    drive(look)
