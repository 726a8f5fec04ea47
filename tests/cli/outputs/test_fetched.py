"""`serried fetch` copies outputs, and writes over no other file."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from building import as_json
from serried.base.files import write_json
from serried.submission import fetch
from serried.submission.snapshot import survey
from trees import tree
from written import described, put

HOSTILE = ["-rf", "a b\n$(x) {data} 'ü", "\udcff\udcfe.pt", "n" * 250]


def test_hostile_names_are_told_in_one_line_and_fetched(serried, started, tmp_path):
    made = started()
    for number, name in enumerate(HOSTILE):
        put(made.where.source, {name: "x"}, number)
    shown = serried("show", "last").out
    assert "  outputs     4 files, 4 B, not fetched: " + "n" * 250 + ", \\udcff\\udcfe.pt, a b\\n$(x)" in shown
    assert len(as_json(serried("show", "last", "--json").out)["runs"][0]["outputs"]["newest"]) == 3
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == sorted(HOSTILE)


@pytest.mark.usefixtures("run")
def test_all_outputs_come_to_the_project_and_a_second_time_none(serried, project):
    before = tree(project)
    (project / "config.yaml").unlink()

    done = serried("fetch", "last", "--to", str(project))

    assert (done.code, done.err) == (0, f"copied 3 files, 19 B, to {project}\n")
    fetched = {"results/model.pt": "weights", "log": "line\n", "config.yaml": "lr: 0.2"}
    assert tree(project) == {**before, **fetched}
    assert (
        serried("fetch", "last", "--to", str(project)).err == f"copied 0 files, 0 B, to {project}; 3 existed already\n"
    )
    shown = serried("show", "last").out
    assert "  outputs     3 files, 19 B, all fetched: results/model.pt, log, config.yaml\n" in shown


@pytest.mark.usefixtures("run")
def test_a_new_folder_in_a_project_is_left_out_of_the_next_snapshot(serried, project, tmp_path):
    before = survey(project).files
    put(project, {"mine/notes": "x"})
    for to in (project / "copies", project / "deep/copies", project / "mine", tmp_path / "elsewhere"):
        assert serried("fetch", "last", "--to", str(to)).code == 0
    marked = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob(".gitignore"))
    assert marked == [f"{project.relative_to(tmp_path)}/{name}" for name in ("copies", "deep/copies")]
    assert {path for path in survey(project).files if not path.startswith("mine/")} == set(before)


@pytest.mark.usefixtures("run")
def test_what_is_there_and_no_earlier_copy_of_the_output_is_never_written_over_unasked(serried, project):
    """Older or newer: the project's own `config.yaml` and the model of a run at home stay."""
    put(project, {"results/model.pt": "mine, and older"}, -999)
    words = ("fetch", "last", "config.yaml", "results", "log", "--to", str(project))

    done = serried(*words)

    assert (done.code, done.err.splitlines()[:3]) == (
        1,
        [
            f"copied 1 file, 5 B, to {project}",
            "warning: different files exist and were kept: `config.yaml`, `results/model.pt`",
            "hint: `--force` overwrites them",
        ],
    )
    assert (project / "results/model.pt").read_text() == "mine, and older"
    assert as_json(serried(*words, "--json").out)["kept"] == ["config.yaml", "results/model.pt"]
    assert serried(*words, "--force").code == 0
    assert (project / "results/model.pt").read_text() == "weights"


def test_a_log_that_has_grown_replaces_the_copy_that_was_fetched_before(serried, run, tmp_path):
    words = ("fetch", "last", "log", "--to", str(tmp_path / "to"))
    assert serried(*words).code == 0
    put(run.where.source, {"log": "line\nand more\n"}, 40)
    assert "3 files, 28 B, not fetched: log, results/model.pt, config.yaml\n" in serried("show", "last").out
    assert serried(*words).code == 0
    assert (tmp_path / "to/log").read_text() == "line\nand more\n"
    (tmp_path / "to/log").write_text("edited")
    put(run.where.source, {"log": "line\nand more\nand more\n"}, 50)
    assert serried(*words).code == 1
    assert (tmp_path / "to/log").read_text() == "edited"


def test_a_file_that_changes_while_it_is_fetched_is_known_by_what_was_copied(started, tmp_path, serried, monkeypatch):
    made = started()
    put(made.where.source, {"log": "line\n"})
    copy_file = fetch.copy_file

    def grow_first(path, target, observe):
        put(made.where.source, {"log": "line\nand more\n"}, 20)
        copy_file(path, target, observe)

    monkeypatch.setattr(fetch, "copy_file", grow_first)
    words = ("fetch", "last", "log", "--to", str(tmp_path / "to"))
    assert serried(*words).code == 0
    assert described(made)[1].unfetched == 0
    monkeypatch.setattr(fetch, "copy_file", copy_file)
    put(made.where.source, {"log": "line\nand more\nand more\n"}, 30)
    assert as_json(serried(*words, "--json").out)["copied"] == ["log"]


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["unforced", "forced"])
def test_results_and_outputs_of_one_name_both_come(serried, run, tmp_path, force):
    put(run.where.results, {"log": "the results' own", "more": "x"})
    words = ("fetch", "last", "log", "more", "--to", str(tmp_path / "to"), *force)
    for _ in range(2):
        assert serried(*words).code == 0
        assert tree(tmp_path / "to") == {"log": "the results' own", "more": "x", "outputs/log": "line\n"}


def test_two_outputs_that_would_have_one_place_both_come(serried, started, project, monkeypatch):
    """To a folder of the project, where the one that was written there has its place."""
    made = started()
    put(made.where.source, {"log.txt": "the project's", "results/log.txt": "the folder's"})
    monkeypatch.chdir(project / "results")

    done = serried("fetch", "last", "**/log.txt", "--force", "--json")

    assert as_json(done.out)["copied"] == ["log.txt", "outputs/log.txt"]
    assert (project / "results/log.txt").read_text() == "the folder's"
    assert (project / "results/outputs/log.txt").read_text() == "the project's"
    assert described(made)[1].unfetched == 0


def test_where_ranks_start_within_the_project_patterns_begin_there_too(serried, started, project, monkeypatch):
    """And what is fetched into that folder goes to its place."""
    made = started()
    source = made.plan.source._replace(workdir="results")
    write_json(made.record.directory.plan, made.plan._replace(source=source).to_json())
    put(made.where.source, {"results/a.pt": "a", "results/deep/b.pt": "b", "c.pt": "c", "other/a.pt": "d"})
    monkeypatch.chdir(project / "results")
    assert as_json(serried("fetch", "last", "a.pt", "deep/*", "--json").out)["copied"] == ["a.pt", "deep/b.pt"]
    assert as_json(serried("fetch", "last", "**/*.pt", "--json").out)["copied"] == ["c.pt", "other/a.pt"]
    assert (project / "results/deep/b.pt").read_text() == "b"


def test_links_into_the_tree_lead_to_the_copies(serried, started, tmp_path):
    made = started()
    tree_of_run, to = made.where.source, tmp_path / "to"
    put(tree_of_run, {"runs/epoch-9.pt": "weights"})
    for name, leads in {
        "last.pt": tree_of_run / "runs/epoch-9.pt",
        "runs/last.pt": tree_of_run / "runs/epoch-9.pt",
        "runs/other": "epoch-9.pt",
        "away": tmp_path,
    }.items():
        (tree_of_run / name).symlink_to(leads)
    assert serried("fetch", "last", "--to", str(to)).code == 0
    links = {str(path.relative_to(to)): str(path.readlink()) for path in to.rglob("*") if path.is_symlink()}
    assert links == {
        "last.pt": "runs/epoch-9.pt",
        "runs/last.pt": "epoch-9.pt",
        "runs/other": "epoch-9.pt",
        "away": str(tmp_path),
    }
    assert serried("fetch", "last", "--to", str(to)).err == f"copied 0 files, 0 B, to {to}; 5 existed already\n"
    assert serried("clean", "-y", "k3f9q2").code == 0


@pytest.mark.usefixtures("run")
def test_a_fetch_to_nowhere_copies_nothing_and_says_what_there_is(serried, project):
    before = tree(project)
    done = serried("fetch", "last")
    assert (done.code, done.err.splitlines(), tree(project)) == (
        0,
        [
            "up to date: all results of run `k3f9q2` are in the run directory",
            "  outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml",
            "  serried fetch k3f9q2 --to DIR   copy its results and outputs to a folder",
        ],
        before,
    )


def test_where_there_is_nothing_to_copy_no_copying_is_advised(serried, make):
    make().ending()
    assert serried("fetch", "last").err.splitlines() == ["run `k3f9q2` has neither results nor outputs"]


def test_a_killed_fetch_goes_on_and_only_then_are_outputs_called_fetched(serried, started, tmp_path, monkeypatch):
    made = started()
    content = os.urandom(3 * fetch.fs_copy.CHUNK)
    (made.where.source / "model.pt").write_bytes(content)
    pour = fetch._copy_rest

    def interrupted(source, aside, size, observe):
        def stop(count):
            if count:
                raise KeyboardInterrupt
            observe(count)

        return pour(source, aside, size, stop)

    monkeypatch.setattr(fetch, "_copy_rest", interrupted)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code != 0
    (part,) = (tmp_path / "to").iterdir()
    assert (part.stat().st_size, described(made)[1].unfetched) == (fetch.fs_copy.CHUNK, 1)
    monkeypatch.setattr(fetch, "_copy_rest", pour)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert (tmp_path / "to/model.pt").read_bytes() == content
    assert described(made)[1].unfetched == 0


def test_two_copies_of_one_file_to_one_place_at_once_leave_one_whole_file(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "to"
    source.mkdir()
    content = os.urandom(4 * fetch.fs_copy.CHUNK)
    (source / "model").write_bytes(content)
    entries = fetch.list_entries(source, ["*"], pytest.fail)
    problems, asked, second_waits, lock = [], [], threading.Event(), fetch.fcntl.flock

    def flock(file, how):
        asked.append(file)
        if len(asked) > 1:
            second_waits.set()
        lock(file, how)

    def copy(observe):
        problems.append(fetch.copy(entries, target, force=False, observe=observe).problems)

    def wait_for_the_second(count):
        if count and not second.ident:
            second.start()
            second_waits.wait(120)

    monkeypatch.setattr(fetch.fcntl, "flock", flock)
    second = threading.Thread(target=copy, args=(lambda _: None,))
    copy(wait_for_the_second)
    second.join()
    assert len(asked) == 2
    assert problems == [{}, {}]
    assert [path.name for path in target.iterdir()] == ["model"]
    assert (target / "model").read_bytes() == content


def test_a_run_directory_that_cannot_be_written_loses_only_the_memory_of_the_fetch(serried, run, tmp_path):
    run.where.fetched.mkdir()  # also root cannot write to that
    done = serried("fetch", "last", "log", "--to", str(tmp_path / "to"))
    assert (done.code, (tmp_path / "to/log").read_text()) == (0, "line\n")
    assert done.err.splitlines()[1:] == [
        "warning: cannot note in the run directory which files were fetched: is a directory",
        "hint: `serried clean` keeps the outputs there until the same fetch runs again",
    ]


def test_each_task_has_a_tree_and_its_outputs_a_folder_of_their_own(serried, started, tmp_path):
    made = started(indices=range(3))
    for index in (0, 2):
        put(made.where.task(index).source, {"model": f"of {index}"}, index)
    shown = serried("show", "last").out
    assert "  outputs     2 files, 8 B, not fetched: 2/model, 0/model\n" in shown
    assert f"  source      {made.where.path}/tasks/I/source\n" in shown
    assert "  outputs     1 file, 4 B, not fetched: model\n" in serried("show", "last/2").out
    assert serried("fetch", "last/2", "--to", str(tmp_path / "one")).code == 0
    assert tree(tmp_path / "one") == {"model": "of 2"}
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert tree(tmp_path / "to") == {"0/model": "of 0", "2/model": "of 2"}


def test_a_torn_line_in_the_memory_of_fetches_spoils_no_other(serried, run, tmp_path):
    """A disk that was full in the middle of it."""
    run.where.fetched.write_text('{"path": "log", "by')
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert described(run)[1].unfetched == 0
    assert json.loads(run.where.fetched.read_text().splitlines()[1])["path"] == "config.yaml"


def test_a_disk_that_is_full_leaves_outputs_unfetched(serried, run, tmp_path, monkeypatch):
    pour = fetch._copy_rest

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_copy_rest", refuse)
    done = serried("fetch", "last", "--to", str(tmp_path / "to"))
    assert (done.code, done.err.count("No space left on device"), described(run)[1].unfetched) == (1, 3, 3)
    monkeypatch.setattr(fetch, "_copy_rest", pour)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert described(run)[1].unfetched == 0


def test_the_log_of_a_job_script_comes_as_a_file(serried, started, tmp_path):
    made = started()
    log = made.where.attempt(1).script_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("epoch 1\n")
    made.where.source.mkdir(exist_ok=True)
    (made.where.source / "slurm-1.out").symlink_to(log)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert not (tmp_path / "to/slurm-1.out").is_symlink()
    assert (tmp_path / "to/slurm-1.out").read_text() == "epoch 1\n"
