"""One process builds; others that need the same build wait for it, or replace a builder that has died."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serried.base import processes
from serried.base.errors import DataFailed
from serried.submission import builds
from serried.submission.builds import Recipe
from serried.submission.deliver import silent


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    folder = tmp_path / "my project" / builds.ENVIRONMENTS
    return Recipe(folder, "venv-x", "done", "requirements.txt", "building venv-x", 'mkdir "$prefix"\n')


def finish_at_once(script: Path, _log: Path, tick: builds.Tick) -> str:
    tick()
    script.with_suffix("").mkdir()
    (script.with_suffix("") / "done").touch()
    return ""


def never(_script: Path, _log: Path, _tick: builds.Tick) -> str:
    pytest.fail("a complete build was built again")


def test_who_comes_while_it_is_built_waits_and_takes_what_the_other_has_built(recipe):
    began, may_end, waits = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []
    found: list[Path] = []

    def slowly(script: Path, log: Path, tick: builds.Tick) -> str:
        began.set()
        assert may_end.wait(120)
        return finish_at_once(script, log, tick)

    def hears(text: str, *_: str) -> None:
        said.append(text)
        waits.set()

    first = threading.Thread(target=lambda: found.append(builds.provide(recipe, slowly, lambda *_: None)))
    first.start()
    assert began.wait(120)
    second = threading.Thread(target=lambda: found.append(builds.provide(recipe, never, hears)))
    second.start()
    assert waits.wait(120)
    may_end.set()
    for thread in (first, second):
        thread.join()

    assert found == [found[0]] * 2
    assert said[0] == f"waiting for {os.uname().nodename}, which is {recipe.step}"
    assert not (recipe.folder / "venv-x.claims").exists()


def leave_a_claim(recipe: Recipe, **owner: object) -> Path:
    """As a builder does that was killed."""
    claim = recipe.claim()
    assert claim
    claim.prefix.mkdir()
    (claim.path / "owner.json").write_text(json.dumps({"host": os.uname().nodename, "pid": 1, "started": "?", **owner}))
    return claim.prefix


def test_a_builder_that_was_killed_is_replaced_and_its_half_built_folder_removed(recipe):
    half = leave_a_claim(recipe)

    found = builds.provide(recipe, finish_at_once, lambda *_: None)

    assert found != half
    assert not half.exists()


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_builder_that_is_at_work_is_not_replaced_also_where_there_is_no_proc(recipe, monkeypatch, has_proc):
    monkeypatch.setattr(processes, "HAS_PROC", has_proc)
    at_work = recipe.claim()
    assert (at_work is not None, recipe.claim()) == (True, None)


def test_a_builder_on_another_machine_is_replaced_once_it_falls_silent(recipe, monkeypatch):
    leave_a_claim(recipe, host="login9")
    said: list[str] = []
    monkeypatch.setattr(builds, "SILENT_SECONDS", 0.8)

    builds.provide(recipe, finish_at_once, lambda text, *_: said.append(text))

    assert said[0] == f"waiting for login9, which is {recipe.step}"


def test_a_builder_that_was_replaced_publishes_nothing_and_leaves_its_successors_folder(recipe):
    old = recipe.claim()
    assert old
    new = recipe.succeed(recipe.owner())
    assert new
    assert recipe.succeed({"number": 1}) is None  # only one can
    for claim in (old, new):
        claim.prefix.mkdir()
        (claim.prefix / "done").touch()

    old.publish()
    old.tidy()
    assert (recipe.finished(), old.prefix.exists(), new.prefix.exists()) == (None, False, True)

    new.publish()
    new.tidy()
    assert recipe.finished() == new.prefix


def test_a_build_ends_with_who_started_it(tmp_path, wait_until):
    log = tmp_path / "log"
    script = tmp_path / "script"
    script.write_text("sh -c 'echo $$; exec sleep 1000'; echo went on\n")
    program = (
        "import os, pathlib, signal, sys; from serried.submission import builds\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "def tick(): log.exists() and log.read_text() and os.kill(os.getpid(), signal.SIGKILL)\n"
        "builds.here(os.environ)(pathlib.Path(sys.argv[2]), log, tick)"
    )
    subprocess.run([sys.executable, "-c", program, log, script], check=False)

    wait_until(lambda: processes.identify(int(log.read_text().split()[0])) is None)
    assert "went on" not in log.read_text()


def test_interrupting_the_build_ends_it_and_leaves_nothing_running(tmp_path, wait_until):
    def interrupted() -> None:
        raise KeyboardInterrupt

    log = tmp_path / "log"
    script = tmp_path / "script"
    script.write_text("sleep 1000 & echo $! ; wait\n")
    with pytest.raises(KeyboardInterrupt):
        builds.here(os.environ)(script, log, lambda: interrupted() if log.exists() and log.read_text() else None)

    wait_until(lambda: processes.identify(int(log.read_text())) is None)


def test_who_comes_while_the_claims_are_tidied_away_gets_a_claim_next_time(recipe, monkeypatch):
    claimed = Recipe.claimed

    def tidied_up_meanwhile(self):
        numbers = claimed(self)
        (recipe.folder / "venv-x.claims").rmdir()
        return numbers

    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "claimed", tidied_up_meanwhile)
        assert recipe.claim() is None
    assert recipe.claim() is not None


def test_who_finds_it_built_leaves_the_log_of_the_build(recipe):
    builder = recipe.claim()
    builder.prefix.mkdir()
    (builder.prefix / "done").touch()
    builder.log.touch()
    builder.publish()
    builder.tidy()

    recipe.claim().tidy()

    assert (recipe.finished(), builder.log.exists()) == (builder.prefix, True)


def test_a_script_that_succeeds_without_its_product_has_failed(recipe):
    recipe = dataclasses.replace(recipe, failure=DataFailed)
    with pytest.raises(DataFailed, match=r"building venv-x failed: `.*\.sh` has not created `done`"):
        builds.provide(recipe, builds.here(os.environ), silent)
