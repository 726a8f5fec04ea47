"""Outputs: what a run writes by relative paths is told, counted, fetched, and never removed by accident."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import threading
from pathlib import Path

import pytest

from building import CREATED, as_json
from serried import snapshot
from serried.agent.head import snapshot as unpacking
from serried.agent.work import Work
from serried.contract.files import make_directory, write_json
from serried.plan import Source
from serried.records import outputs
from serried.submission import copies, onefile
from serried.ui import console
from trees import tree

DAY = 86400
HOSTILE = ["-rf", "a b\n$(x) {data} 'ü", "\udcff\udcfe.pt", "n" * 250]


def put(folder, files, at=10):
    """Files, written so many seconds after the run was submitted."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (CREATED + at, CREATED + at))


@pytest.fixture
def project(tmp_path):
    """Code, a folder that comes with it, a link, and data that the snapshot links to."""
    folder = tmp_path / "project"
    code = {"train.py": "print(1)", "config.yaml": "lr: 0.1", "results/keep": "", "empty": ""}
    put(folder, {**code, "data/set": "data"})
    (folder / "go").symlink_to("train.py")
    return folder


@pytest.fixture
def started(make, project, tmp_path):
    """`started(run, indices=…)`: a run that has ended, whose attempts have unpacked its snapshot."""

    def start(run="k3f9q2", *, tree_per_element=True, **options):
        made = make(run, **options)
        survey = snapshot.survey(project, ["data"], [tmp_path / "scratch"])
        archive = snapshot.store(survey, made.where.path.parents[1] / "sources")
        own = made.plan.array is not None and tree_per_element
        source = Source(str(project), archive=str(archive.path), links=survey.links, tree_per_element=own)
        made.plan = dataclasses.replace(made.plan, source=source)
        for path in (made.where.plan, made.record.directory.plan):
            write_json(path, made.plan.to_json())
        for element in options.get("indices", [None]):
            make_directory(made.where.element(element).path)
            unpacking.unpack(Work(made.where, made.plan.to_json(), element, 1))
            made.ending(element=element)
        return made

    return start


@pytest.fixture
def run(started):
    """It has written a model, a log, and over a file of its snapshot."""
    made = started()
    put(made.where.source, {"config.yaml": "lr: 0.2"}, 15)
    put(made.where.source, {"log": "line\n"}, 20)
    put(made.where.source, {"results/model.pt": "weights"}, 25)
    put(made.where.source, {"__pycache__/train.pyc": "code", "b.pyc": "code", "results/__pycache__/a": "code"}, 30)
    (made.where.source / "data" / "new").write_text("the project's, through its link")
    return made


def described(made, **options):
    found = outputs.describe(outputs.trees(made.where, made.plan), **options)
    return [each.path for each in found.newest], found


def test_a_tree_that_was_only_unpacked_holds_no_outputs(started):
    assert described(started()) == ([], outputs.Outputs())
    assert described(started("m2n3p4", indices=range(2))) == ([], outputs.Outputs())


@pytest.mark.usefixtures("run")
def test_new_and_changed_files_are_outputs_and_byte_code_and_links_to_the_project_are_not(serried):
    shown = serried("show", "last")
    told = as_json(serried("show", "last", "--json").out)["runs"][0]["outputs"]

    said = "3 files, 19 B, not fetched: results/model.pt, log, config.yaml"
    assert f"  outputs     {said}\n" in shown.out
    assert "serried fetch k3f9q2 --to DIR" in shown.err
    assert told == {
        "files": 3,
        "bytes": 19,
        "not_fetched": {"files": 3, "bytes": 19},
        "newest": [
            {"path": "results/model.pt", "bytes": 7, "changed": "2026-11-18T11:07:05Z"},
            {"path": "log", "bytes": 5, "changed": "2026-11-18T11:07:00Z"},
            {"path": "config.yaml", "bytes": 7, "changed": "2026-11-18T11:06:55Z"},
        ],
        "unread": 0,
        "complete": True,
    }
    waited = serried("wait", "last")
    assert waited.err.splitlines() == [
        "k3f9q2 train COMPLETED after 10m00s",
        f"  outputs: {said}",
        "  serried fetch k3f9q2 --to DIR   copy its results and outputs to a folder",
    ]


def test_a_copy_of_the_code_is_an_output_and_a_file_written_anew_with_the_same_content_is_not(started):
    made = started()
    source = made.where.source
    put(source, {"code/train.py": "print(1)", "train.py": "print(1)"})
    os.utime(source / "code/train.py", (CREATED, CREATED))  # as shutil.copytree leaves it
    (source / "go").unlink()
    (source / "go").symlink_to("log")
    (source / "data").unlink()
    put(source, {"data/mine": "not through the link any more"})
    assert sorted(described(made)[0]) == ["code/train.py", "data/mine", "go"]


def test_without_the_archive_the_snapshot_is_known_by_its_time(run):
    Path(run.plan.source.archive).unlink()
    names, found = described(run)
    assert (sorted(names), found.files) == (["config.yaml", "log", "results/model.pt"], 3)


def test_a_tree_of_an_earlier_version_is_compared_by_content(run):
    """Its files have the times at which they were unpacked."""
    for path in run.where.source.rglob("*"):
        os.utime(path, (CREATED + 99, CREATED + 99), follow_symlinks=False)
    assert sorted(described(run)[0]) == ["config.yaml", "log", "results/model.pt"]


def test_hostile_names_are_told_in_one_line_and_fetched(serried, started, tmp_path):
    made = started()
    for number, name in enumerate(HOSTILE):
        put(made.where.source, {name: "x"}, number)
    shown = serried("show", "last").out
    assert "  outputs     4 files, 4 B, not fetched: " + "n" * 250 + ", \\udcff\\udcfe.pt, a b\\n$(x)" in shown
    assert len(as_json(serried("show", "last", "--json").out)["runs"][0]["outputs"]["newest"]) == 3
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == sorted(HOSTILE)


def test_of_a_huge_tree_only_so_much_is_looked_at_before_it_is_told(started):
    made = started()
    put(made.where.source, {f"many/{number}": "x" for number in range(50)})
    _, found = described(made, most=30)
    assert (found.is_all, found.text[:9]) == (False, "at least ")
    assert 20 <= found.files <= 30
    looked = []
    assert described(made, tell=looked.append)[1].files == 50
    assert described(made, most=1000)[1].is_all


@pytest.mark.usefixtures("run")
def test_all_outputs_come_to_the_project_and_a_second_time_none(serried, project):
    before = tree(project)
    (project / "config.yaml").unlink()

    done = serried("fetch", "last", "--to", str(project))

    assert (done.code, done.err) == (0, f"copied 3 files, 19 B, to {project}\n")
    fetched = {"results/model.pt": "weights", "log": "line\n", "config.yaml": "lr: 0.2"}
    assert tree(project) == {**before, **fetched}
    assert serried("fetch", "last", "--to", str(project)).err == f"copied 0 files, 0 B, to {project}; 3 were there\n"
    shown = serried("show", "last").out
    assert "  outputs     3 files, 19 B, all fetched: results/model.pt, log, config.yaml\n" in shown


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
            "warning: other files are there, and were kept: `config.yaml`, `results/model.pt`",
            "hint: `--force` writes over them",
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
    copy_file = copies.copy_file

    def grow_first(path, target, observe):
        put(made.where.source, {"log": "line\nand more\n"}, 20)
        copy_file(path, target, observe)

    monkeypatch.setattr(copies, "copy_file", grow_first)
    words = ("fetch", "last", "log", "--to", str(tmp_path / "to"))
    assert serried(*words).code == 0
    assert described(made)[1].unfetched == 0
    monkeypatch.setattr(copies, "copy_file", copy_file)
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
    source = dataclasses.replace(made.plan.source, workdir="results")
    write_json(made.record.directory.plan, dataclasses.replace(made.plan, source=source).to_json())
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
    assert serried("fetch", "last", "--to", str(to)).err == f"copied 0 files, 0 B, to {to}; 5 were there\n"
    assert serried("clean", "-y", "k3f9q2").code == 0


@pytest.mark.usefixtures("run")
def test_a_fetch_to_nowhere_copies_nothing_and_says_what_there_is(serried, project):
    before = tree(project)
    done = serried("fetch", "last")
    assert (done.code, done.err.splitlines(), tree(project)) == (
        0,
        [
            "nothing is missing: all that run `k3f9q2` was to bring back is there",
            "  outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml",
            "  serried fetch k3f9q2 --to DIR   copy its results and outputs to a folder",
        ],
        before,
    )


def test_a_killed_fetch_goes_on_and_only_then_are_outputs_called_fetched(serried, started, tmp_path, monkeypatch):
    made = started()
    content = os.urandom(3 * onefile.CHUNK)
    (made.where.source / "model.pt").write_bytes(content)
    pour = onefile._pour

    def interrupted(source, aside, size, observe):
        def stop(count):
            if count:
                raise KeyboardInterrupt
            observe(count)

        return pour(source, aside, size, stop)

    monkeypatch.setattr(onefile, "_pour", interrupted)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code != 0
    (part,) = (tmp_path / "to").iterdir()
    assert (part.stat().st_size, described(made)[1].unfetched) == (onefile.CHUNK, 1)
    monkeypatch.setattr(onefile, "_pour", pour)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert (tmp_path / "to/model.pt").read_bytes() == content
    assert described(made)[1].unfetched == 0


def test_two_copies_of_one_file_to_one_place_at_once_leave_one_whole_file(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "to"
    source.mkdir()
    content = os.urandom(4 * onefile.CHUNK)
    (source / "model").write_bytes(content)
    entries = copies.find(source, ["*"], pytest.fail)
    problems, asked, second_waits, lock = [], [], threading.Event(), onefile.fcntl.flock

    def flock(file, how):
        asked.append(file)
        if len(asked) > 1:
            second_waits.set()
        lock(file, how)

    def copy(observe):
        problems.append(copies.copy(entries, target, force=False, observe=observe).problems)

    def wait_for_the_second(count):
        if count and not second.ident:
            second.start()
            second_waits.wait(120)

    monkeypatch.setattr(onefile.fcntl, "flock", flock)
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
        "warning: the run directory does not remember what was fetched: is a directory",
        "hint: `serried clean` keeps the outputs there until the same fetch is made again",
    ]


def test_each_element_has_a_tree_and_its_outputs_a_folder_of_their_own(serried, started, tmp_path):
    made = started(indices=range(3))
    for index in (0, 2):
        put(made.where.element(index).source, {"model": f"of {index}"}, index)
    shown = serried("show", "last").out
    assert "  outputs     2 files, 8 B, not fetched: 2/model, 0/model\n" in shown
    assert f"  source      {made.where.path}/elements/I/source\n" in shown
    assert "  outputs     1 file, 4 B, not fetched: model\n" in serried("show", "last/2").out
    assert serried("fetch", "last/2", "--to", str(tmp_path / "one")).code == 0
    assert tree(tmp_path / "one") == {"model": "of 2"}
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert tree(tmp_path / "to") == {"0/model": "of 0", "2/model": "of 2"}


def test_a_shared_tree_is_told_of_once(serried, started, tmp_path):
    made = started(indices=range(3), tree_per_element=False)
    put(made.where.source, {"model": "of all"})
    assert "  outputs     1 file, 6 B, not fetched: model\n" in serried("show", "last").out
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert tree(tmp_path / "to") == {"model": "of all"}


def test_a_run_in_place_has_no_outputs_and_says_where_its_files_are(serried, make):
    made = make().ending()
    plan = dataclasses.replace(made.plan, source=dataclasses.replace(made.plan.source, snapshot=False))
    write_json(made.record.directory.plan, plan.to_json())
    assert "outputs" not in serried("show", "last").out
    assert serried("fetch", "last", "*.pt").err == (
        "error: nothing of run `k3f9q2` is called `*.pt`\n\n"
        "hint: it ran in place: what it wrote by relative paths is in `/home/ada/digits`\n"
    )


def test_du_counts_outputs_apart_from_the_code(serried, run):
    (thing,) = [one for one in as_json(serried("du", "--json").out)["things"] if one["kind"] == "run"]
    parts = thing["parts"]
    assert (parts["outputs"]["files"], parts["outputs"]["bytes"]) == (3, 19)
    assert thing["bytes"] == sum(part["bytes"] for part in parts.values())
    everything = sum(1 for _ in run.where.path.rglob("*")) + 1
    assert thing["files"] == everything


def test_clean_keeps_a_run_whose_outputs_were_not_fetched(serried, run, clock):
    named = serried("clean", "-y", "k3f9q2")
    clock.passed += 60 * DAY
    old = serried("clean", "-y", "--older-than", "30d")

    said = "outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml"
    fetch = "`serried fetch k3f9q2 --to DIR` copies them; with `--outputs` they are removed too"
    assert (named.code, named.err) == (2, f"error: run `k3f9q2` stays: {said}\n\nhint: {fetch}\n")
    assert (old.code, old.err) == (
        0,
        f"nothing to remove\nnote: k3f9q2 train stays: {said}\nnote: {fetch}\n",
    )
    assert (run.where.source / "results/model.pt").read_text() == "weights"


def test_clean_removes_them_when_they_were_fetched_and_not_changed_since(serried, run, tmp_path):
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    put(run.where.source, {"log": "more came"}, 99)
    assert "outputs: 3 files, 23 B, of which 1 not fetched: log" in serried("clean", "-y", "k3f9q2").err
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert serried("clean", "-y", "k3f9q2").code == 0
    assert not run.where.path.exists()
    assert (tmp_path / "to/log").read_text() == "more came"


def test_clean_with_outputs_names_them_in_its_question(serried, run, monkeypatch):
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = serried("clean", "k3f9q2", "--outputs")
    assert done.code == 0
    assert "outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml" in done.out
    assert "3 outputs never fetched? [y/N]" in done.err
    assert not run.where.path.exists()


def test_a_file_that_comes_while_clean_asks_keeps_its_run(serried, run, tmp_path, monkeypatch):
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0

    def write_meanwhile(_):
        put(run.where.source, {"late": "x"}, 99)
        return True

    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", write_meanwhile)
    done = serried("clean", "--older-than", "2100-01-01")
    assert (done.code, (run.where.source / "late").exists()) == (1, True)
    assert "warning: k3f9q2 train stays: it is needed by now\n" in done.err


def test_a_run_whose_outputs_cannot_be_looked_at_stays(serried, run, monkeypatch):
    """A folder that is closed; a plan that a later version has written."""
    assert serried("fetch", "last", "--to", "/dev/null/x").code == 2
    scan = os.scandir

    def refuse(folder):
        if Path(os.fsdecode(folder)).name == "results":
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    done = serried("clean", "-y", "k3f9q2")
    monkeypatch.setattr(os, "scandir", scan)
    assert (done.code, "; 1 folder cannot be read" in done.err, run.where.path.exists()) == (2, True, True)
    assert serried("ps", "--all").code == 0
    for path in (run.where.plan, run.record.directory.plan):
        write_json(path, {**run.plan.to_json(), "schema": 99})
    assert serried("clean", "-y", "k3f9q2").code == 2
    kept = serried("clean", "-y", "--older-than", "2100-01-01").err
    assert "note: k3f9q2 train stays: outputs: its plan cannot be read, which says where they are\n" in kept
    assert run.where.path.exists()


class Failing:
    """What a file server that fails shows of a folder: an entry that cannot be looked at, or an end before the end."""

    def __init__(self, entries, at):
        self.entries, self.at = entries, at

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.entries.close()

    def __iter__(self):
        for entry in self.entries:
            if self.at == "entry" and entry.name == "model.pt":
                yield self
            else:
                yield entry
        if self.at == "listing":
            raise OSError(errno.EIO, "Input/output error")

    name = "model.pt"

    def stat(self, **_):
        raise OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize("at", ["entry", "listing"])
def test_a_file_server_that_fails_meanwhile_hides_a_folder_and_ends_nothing(run, monkeypatch, at):
    scan = os.scandir

    def scandir(folder):
        return Failing(scan(folder), at) if Path(folder).name == "results" else scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    found = outputs.describe(outputs.trees(run.where, run.plan))
    assert (found.unread, found.files) == (1, 2 if at == "entry" else 3)
    assert "; 1 folder cannot be read" in found.text


def test_a_torn_line_in_the_memory_of_fetches_spoils_no_other(serried, run, tmp_path):
    """A disk that was full in the middle of it."""
    run.where.fetched.write_text('{"path": "log", "by')
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert described(run)[1].unfetched == 0
    assert json.loads(run.where.fetched.read_text().splitlines()[1])["path"] == "config.yaml"


def test_a_disk_that_is_full_leaves_outputs_unfetched(serried, run, tmp_path, monkeypatch):
    pour = onefile._pour

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onefile, "_pour", refuse)
    done = serried("fetch", "last", "--to", str(tmp_path / "to"))
    assert (done.code, done.err.count("No space left on device"), described(run)[1].unfetched) == (1, 3, 3)
    monkeypatch.setattr(onefile, "_pour", pour)
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert described(run)[1].unfetched == 0
