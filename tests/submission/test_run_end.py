"""What `serried run` says at its end: the files that it leaves in the project itself, and what to type next."""

from __future__ import annotations

import re
import sys

import pytest

import command_line
from serried.records import outputs
from serried.records.index import records

pytestmark = pytest.mark.runs


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    return folder


def run(*words):
    return command_line.here("run", "--", *words)


def changed_in(project, done):
    """What the end of a run says of the project."""
    said = [line for line in done.stderr.splitlines() if "while it ran" in line]
    return [line.removeprefix(f"  changed in {project} while it ran: ") for line in said]


def test_the_end_names_the_newest_files_that_changed_in_the_project_and_no_others(project):
    for name in ("old.pt", "log.csv", "data/set", "sub/.git/x", "env/pyvenv.cfg", "env/lib/x", "kept.tar"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("old")
    (project / "aim").symlink_to("old.pt")
    program = (
        "import os; os.makedirs('results/deep'); [open(n, 'a').write('new') for n in "
        "('results/deep/a b\\n$(id).pt', 'log.csv', 'sub/.git/x', 'env/lib/x', 'data/more')]; "
        "open('__pycache__', 'w'); os.utime('kept.tar', (4e9, 1)); os.utime('data/more', (4e9, 4e9)); "
        "os.utime('log.csv', (3e9, 3e9)); os.utime('results/deep/a b\\n$(id).pt', (2e9, 2e9))"
    )
    done = run(sys.executable, "-c", program)
    assert changed_in(project, done) == ["3 files, 12 B: data/more, log.csv, results/deep/a b\\n$(id).pt"]

    failed = run(sys.executable, "-c", "open('dump', 'w').write('1234'); raise SystemExit(3)")
    assert (failed.returncode, changed_in(project, failed)) == (3, ["1 file, 4 B: dump"])

    silent = run("true")
    assert (silent.returncode, changed_in(project, silent)) == (0, [])


def test_of_a_large_project_the_end_counts_what_it_has_looked_at_from_the_top(project, monkeypatch):
    for name in ("a", "b/c", "b/d", "e"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("new")
    monkeypatch.setattr(outputs, "LOOKED", len(list(project.iterdir())))
    found = outputs.changed_in_place(project, 0, project / "runs")
    names = sorted(each.path for each in found.newest)
    assert ([name for name in names if "/" in name], found.is_all) == ([], False)
    assert found.text_in_place.startswith("at least ")


def test_of_a_home_nothing_is_said_as_other_programs_write_there(project, monkeypatch):
    (project / "new").touch()
    monkeypatch.setenv("HOME", str(project))
    assert outputs.changed_in_place(project, 0, project / "runs").text_in_place == ""
    monkeypatch.setenv("HOME", str(project / "home"))
    assert outputs.changed_in_place(project, 0, project / "runs").text_in_place == ""


def test_the_folder_that_runs_are_in_is_none_of_the_project(project):
    (project / "runs").mkdir()
    (project / "runs/new").touch()
    here = project.parent / "elsewhere"
    here.symlink_to(project)
    assert "runs/new" not in outputs.changed_in_place(project, 0, here / "runs").text_in_place
    assert "runs/new" in outputs.changed_in_place(project, 0, here / "gone").text_in_place


def test_what_went_well_here_is_submitted_by_the_same_words(project):
    (project / "a b.py").write_text("")
    done = command_line.here("run", "--ranks", "1", "--", "python3", "a b.py")
    run = records()[0]
    assert [re.split(r" {2,}", line) for line in done.stderr.splitlines()[-4:]] == [
        [f"its files are in {run.where.path}"],
        ["", f"serried logs {run.id}", "its output"],
        ["", f"serried show {run.id}", "plan, timeline and files"],
        ["", "serried submit --ranks 1 -- python3 'a b.py'", "the same in the background"],
    ]
    done = command_line.here("run", "--cluster", "local", "--", "python3", "a b.py")
    again = "serried submit --cluster local -- python3 'a b.py'"
    assert re.split(r" {2,}", done.stderr.splitlines()[-1]) == ["", again, "the same in the background"]


@pytest.mark.usefixtures("project")
def test_the_end_says_that_the_run_recovered():
    program = "[ -e once ] || { touch once; kill -9 $$; }"
    done = command_line.here("run", "--ranks", "1", "--set", "limit.rounds=1", "--", "sh", "-c", program)
    end = next(line for line in done.stderr.splitlines() if line.startswith("completed"))
    assert re.sub("after .*?:", "after", end).startswith("completed after recovered once: rank 0 on ")
