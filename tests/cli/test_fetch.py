"""`serried fetch`: results come to a folder of the user's, all of them, and nothing there is spoilt."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from pathlib import Path

import pytest

from building import CREATED
from serried.base.errors import NotConnected
from serried.base.files import Journal, read_json, write_json
from serried.cli import fetch as fetch_command
from serried.records import outputs
from serried.records.index import Selection
from serried.records.record import Record
from serried.schema.plan import Data
from serried.submission import fetch, script
from serried.submission.fetch import Report

ODD = "a b\n$(x) {data} 'ü"


def fill(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (CREATED, CREATED))


@pytest.fixture
def run(make):
    made = make().ending()
    results = made.where.results
    fill(results, a="first", samples__1="one", samples__2="two")
    fill(made.where.checkpoints, epoch_1="weights")
    (results / ODD).write_text("odd")
    (results / "empty").mkdir()
    (results / "go").symlink_to("samples/1")
    (results / "tool").write_text("#!/bin/sh")
    (results / "tool").chmod(0o700)
    return made


def tree(folder):
    """What is in it: a file's content, where a link leads, None of a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        told = path.read_text() if is_file else str(path.readlink()) if path.is_symlink() else None
        found[str(path.relative_to(folder))] = told
    return found


def test_all_results_come_and_the_second_time_none(serried, run, tmp_path):
    target = tmp_path / "my results"

    done = serried("fetch", "last", "--to", str(target))

    assert (done.code, done.out, done.err) == (0, "", f"copied 6 files, 23 B, to {target}\n")
    assert tree(target) == tree(run.where.results)
    assert (target / "a").stat().st_mtime == CREATED
    assert os.access(target / "tool", os.X_OK)
    assert serried("fetch", "last", "--to", str(target)).err == f"copied 0 files, 0 B, to {target}; 6 existed already\n"


def test_patterns_name_some_of_them_and_checkpoints_too(serried, run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    done = serried("fetch", run.plan.run, "samples/*", "checkpoints/epoch*", "--json")

    assert json.loads(done.out) == {
        "schema": 1,
        "run": "k3f9q2",
        "dry_run": False,
        "nodes": [],
        "to": ".",
        "copied": ["samples/1", "samples/2", "checkpoints/epoch_1"],
        "bytes": 13,
        "same": 0,
        "kept": [],
        "problems": {},
    }
    found = tree(tmp_path / "here")
    assert found == {"samples": None, "samples/1": "one", "samples/2": "two"} | {
        "checkpoints": None,
        "checkpoints/epoch_1": "weights",
    }


def test_other_files_that_are_there_stay_unless_it_is_forced(serried, run, tmp_path):
    """Whether they are newer or older; what an earlier fetch has copied is replaced."""
    target = tmp_path / "to"
    fill(target, a="mine", samples__1="old")
    os.utime(target / "a", (CREATED + 1, CREATED + 1))
    os.utime(target / "samples/1", (CREATED - 1, CREATED - 1))
    words = ("fetch", run.plan.run, "a", "samples", "checkpoints", "--to", str(target))

    done = serried(*words)

    assert (done.code, done.err.splitlines()[:2]) == (
        1,
        [f"copied 2 files, 10 B, to {target}", "warning: different files exist and were kept: `a`, `samples/1`"],
    )
    kept = {"a": "mine", "samples": None, "samples/1": "old", "samples/2": "two"}
    assert tree(target) == {**kept, "checkpoints": None, "checkpoints/epoch_1": "weights"}
    assert serried(*words, "--force").code == 0
    assert (target / "a").read_text() == "first"
    (run.where.results / "a").write_text("second")
    (run.where.checkpoints / "epoch_1").write_text("more weights")
    assert serried(*words).code == 0
    assert ((target / "a").read_text(), (target / "checkpoints/epoch_1").read_text()) == ("second", "more weights")


def test_a_dry_run_says_it_and_touches_nothing(serried, run, tmp_path):
    done = serried("fetch", run.plan.run, "--to", str(tmp_path / "to"), "--dry-run")
    assert (done.code, done.err) == (0, f"would copy 6 files, 23 B, to {tmp_path}/to\n")
    assert not (tmp_path / "to").exists()


def test_what_is_not_there_is_an_error_that_says_where_to_look(serried, run, tmp_path):
    done = serried("fetch", "last", "*.h5")
    hint = "`serried show k3f9q2` lists the folders of its files"
    assert (done.code, done.err) == (2, f"error: run `k3f9q2` has no file that matches `*.h5`\n\nhint: {hint}\n")
    (tmp_path / "file").touch()
    expected = f"error: cannot write to `{tmp_path}/file/to`: Not a directory\n"
    assert serried("fetch", "last", "--to", str(tmp_path / "file/to")).err == expected
    run.where.path.rename(tmp_path / "purged")
    done = serried("fetch", "last")
    removed = "error: the run directory of `k3f9q2` was removed together with its results"
    assert (done.code, done.err.split("\n")[0]) == (2, removed)


def test_each_task_of_an_array_has_a_folder(serried, make, tmp_path):
    made = make(indices=range(3))
    for index in (0, 2):
        made.ending(task=index)
        fill(made.where.task(index).results, a=str(index))
    serried("fetch", "last", "a", "--to", str(tmp_path / "to"))
    assert tree(tmp_path / "to") == {"0": None, "0/a": "0", "2": None, "2/a": "2"}


def test_nothing_is_written_over_a_folder_or_through_a_link_that_stands_for_one_and_the_rest_comes(
    serried, run, tmp_path
):
    (tmp_path / "to" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to" / "samples").symlink_to(tmp_path / "elsewhere")
    done = serried("fetch", run.plan.run, "--to", str(tmp_path / "to"), "--json")
    told = json.loads(done.out)
    assert (done.code, told["problems"]) == (
        1,
        {
            "a": "the target is a folder",
            "samples": "the target exists and is not a folder",
            "samples/1": "`samples` is not a folder",
            "samples/2": "`samples` is not a folder",
        },
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(told["copied"]) == 3


def test_a_copy_that_was_cut_short_goes_on(tmp_path):
    """Killed after the first half: the second copy reads only the rest, and looks at the whole."""
    source, target = tmp_path / "source", tmp_path / "to"
    content = os.urandom(3 * fetch.fs_copy.CHUNK)
    source.mkdir()
    (source / "big").write_bytes(content)
    entries = fetch.list_entries(source, ["*"], pytest.fail)

    def interrupt(count):
        if count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.copy(entries, target, force=False, observe=interrupt)
    (part,) = target.iterdir()
    assert (part.name[0], part.stat().st_size) == (".", fetch.fs_copy.CHUNK)

    done = []
    report = fetch.copy(entries, target, force=False, observe=done.append)

    assert (report.copied, report.problems, done) == (["big"], {}, [fetch.fs_copy.CHUNK] * 3)
    assert [path.name for path in target.iterdir()] == ["big"]
    assert (target / "big").read_bytes() == content


def test_a_file_that_changes_meanwhile_is_copied_as_it_is_in_the_end(tmp_path):
    source, target = tmp_path / "source", tmp_path / "to"
    fill(source, log="begun")
    (entry,) = fetch.list_entries(source, ["*"], pytest.fail)
    left = ["begun, and more", "begun, and more, and done"]

    def grow(count):
        if count and left:
            (source / "log").write_text(left.pop(0))

    report = fetch.copy([entry], target, force=False, observe=grow)
    assert (report.problems, tree(target)) == ({}, {"log": "begun, and more, and done"})


def test_what_goes_while_it_is_looked_for_is_no_problem(tmp_path, monkeypatch):
    """A program writes aside and renames."""
    fill(tmp_path, a="one", b__c="two", **{"b__c.tmp": "half"})
    entries = fetch.tree.entries

    def go_then(folder, problem):
        found = list(entries(folder, problem))
        (tmp_path / "b" / "c.tmp").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(fetch.tree, "entries", go_then)
    assert [entry.path for entry in fetch.list_entries(tmp_path / "b", ["*"], pytest.fail)] == ["c"]


ON_N2 = {"node": 1, "host": "n2", "folder": "/disk/x", "kind": "results", "files": 2, "bytes": 9, "names": ["a", "b"]}
FULL = {**ON_N2, "problem": "No space left on device"}


def test_what_nodes_have_is_told_and_left_alone_by_a_dry_run(serried, make):
    made = make().ending(missing=[FULL, {**FULL, "kind": "checkpoints", "files": None, "bytes": None}])
    done = serried("fetch", "last", "--dry-run")
    said = "would recover results and checkpoints on n2 (No space left on device)\n"
    assert (done.code, done.out, done.err) == (0, "", said)
    assert "  missing     results and checkpoints on n2 (No space left on device)\n" in serried("show", "last").out
    assert "files missing: serried fetch k3f9q2" in serried("ps", "--all").out
    step = "  - copy the files that are still on the nodes, within three days: serried fetch k3f9q2\n"
    assert step in serried("why", "last").out
    assert json.loads(made.record.directory.exit.read_text())["missing"][0] == FULL


def test_what_is_lost_with_its_node_is_called_so_and_nobody_is_sent_there(serried, make):
    made = make().ending(missing=[FULL])
    (found,) = outputs.missing(Selection(made.record), has_ended=True)
    serried("ps", "--all")  # it ends up in the record
    outputs.mark_lost(Selection(Record.load("k3f9q2")), found)

    done = serried("fetch", "last")

    lost = "2 files of results lost with n2 (No space left on device)"
    assert (done.code, done.err) == (1, f"warning: cannot recover {lost}: the files are gone\n")
    assert f"  missing     {lost}\n" in serried("show", "last").out
    assert "serried fetch" not in serried("ps", "--all").out + serried("why", "last").out


def test_an_end_tells_of_the_rest_when_what_was_missing_is_fetched(make):
    told = "node n2 was lost", "2 files could not be copied back", "another attempt continues"
    codes = "node-lost", "results-missing", "continues"
    conditions = [{"code": code, "message": text} for code, text in zip(codes, told, strict=True)]
    made = make().ending(message="; ".join(told), conditions=conditions, missing=[FULL])
    (found,) = outputs.missing(Selection(made.record), has_ended=True)
    outputs.mark_fetched(Selection(made.record), found)
    end = read_json(made.where.task(None).exit) or {}
    message = "node n2 was lost; files that had stayed on nodes were fetched later; another attempt continues"
    assert (end["message"], end["missing"]) == (message, [])
    assert [one["code"] for one in end["conditions"]] == ["node-lost", "results-fetched", "continues"]

    # An end of an earlier version has no conditions.
    old = make("m2n3p4").ending(message="node n2 was lost; files could not be copied back", missing=[FULL])
    outputs.mark_fetched(Selection(old.record), outputs.missing(Selection(old.record), has_ended=True)[0])
    added = "; files that had stayed on nodes were fetched later"
    message = (read_json(old.where.task(None).exit) or {})["message"]
    assert message == f"node n2 was lost; files could not be copied back{added}"


def test_a_fetch_changes_nothing_that_a_later_version_has_written(make):
    later = {"schema": 2, "state": "SUSPENDED", "wakes": {"at": 7}, "nodes": {"n1": 1}, "conditions": []}
    made = make().ending(**later, missing=[{**FULL, "problem": ["No", "space"]}, "n3"])
    paths = made.where.exit, made.where.task(None).attempt(1).exit
    before = [read_json(path) for path in paths]
    (found,) = outputs.missing(Selection(made.record), has_ended=True)

    outputs.mark_lost(Selection(made.record), found)
    assert [read_json(path) for path in paths] == [{**end, "missing": [{**ON_N2, "is_lost": True}]} for end in before]
    outputs.mark_fetched(Selection(made.record), found)
    for path, end in zip(paths, before, strict=True):
        told = {name: end[name] for name in ("message", "conditions")}
        assert {**(read_json(path) or {}), **told} == {**end, "missing": []}


def test_a_wrong_word_in_a_journal_hides_no_files(make):
    made = make().journal({"event": "connected", "node": 1, "host": "n2"})
    brought = {"event": "all-brought", "missing": [{**ON_N2, "problem": 28}]}
    made.journal({"event": "bringing", "folder": "/disk/x", "kinds": ["results"]}, brought, node=1)
    (found,) = outputs.missing(Selection(made.record), has_ended=True)
    assert (found.host, found.folder, found.files, found.problem) == ("n2", "/disk/x", 2, "")


def test_what_nodes_have_of_a_run_that_nobody_lived_to_tell_of_is_known_by_their_journals(make, monkeypatch):
    """Its agents were killed with it: there is no exit.json, and each node keeps its folder."""
    made = make()
    made.journal({"event": "connected", "node": 0, "host": "n1"}, {"event": "connected", "node": 1, "host": "n2"})
    for node in (0, 1):
        made.journal({"event": "bringing", "folder": f"/disk/{node}", "kinds": ["results"]}, node=node)
    of_it = Selection(made.record)
    by_host = {found.host: found for found in outputs.missing(of_it, has_ended=True)}

    assert outputs.missing(of_it, has_ended=False) == []  # its nodes still bring it
    assert {host: found.text for host, found in by_host.items()} == {
        "n1": "results on n1 (its agent ended before every file was copied)",
        "n2": "results on n2 (its agent ended before every file was copied)",
    }
    assert [found.folder for found in by_host.values()] == ["/disk/0", "/disk/1"]
    for node, problem in enumerate(({"problem": None}, {"problem": "it no longer exists", "is_gone": True})):
        journal = Journal(made.attempt().fetched(node))
        journal.append({"event": "ended", "token": "t", **problem})
        journal.close()
    assert [(found.host, found.is_lost) for found in outputs.missing(of_it, has_ended=True)] == [("n2", True)]
    removed = make("m2n3p4")
    removed.attempt()
    numbers = iter([[1], []])  # its attempt is removed while it is looked at
    monkeypatch.setattr(outputs, "attempt_numbers", lambda _: next(numbers))
    assert outputs.missing(Selection(removed.record), has_ended=True) == []


@pytest.fixture
def left(make, tmp_path, _real_processes):
    """`left(attempt, node, **files)`: what it left there; agents of the run bring it, on this machine, for any node."""
    made = make(scheduler="local")
    made.where.agent.write_bytes(script.agent().read())
    write_json(made.where.plan, made.plan._replace(data=Data(results=("*",))).to_json())
    missing_of: dict[int, list[dict]] = {}

    def leave(attempt, node, **files):
        folder = tmp_path / "disk" / f"{attempt}-{node}"
        if files:
            fill(folder / "results", **files)
        one = {**FULL, "node": node, "host": os.uname().nodename, "folder": str(folder)}
        missing_of.setdefault(attempt, []).append(one)
        made.ending(number=attempt, missing=missing_of[attempt])
        return made.where

    return leave


def test_several_nodes_bring_what_they_have_by_the_rules_of_agents(serried, left, tmp_path):
    """Two of them wrote `a`; a third has nothing any more."""
    for node in (0, 1):
        left(1, node, a=f"of {node}", **{f"only_{node}": "x"})
    where = left(1, 2)

    done = serried("fetch", "last", "--json")

    told = json.loads(done.out)
    expected = [(0, 2, None), (1, 2, None), (2, 0, "it no longer exists")]
    assert [(each["node"], each["brought_files"], each["problem"]) for each in told["nodes"]] == expected
    assert done.code == 1
    found = tree(where.results)
    first, second = (0, 1) if found["a"] == "of 0" else (1, 0)
    assert found == {
        "a": f"of {first}",
        f"node-{second}": None,
        f"node-{second}/a": f"of {second}",
        "only_0": "x",
        "only_1": "x",
    }
    assert [path.name for path in (tmp_path / "disk").iterdir()] == []
    still = (read_json(where.task(None).exit) or {})["missing"]
    assert [(Path(each["folder"]).name, each["is_lost"]) for each in still] == [("1-2", True)]


def test_a_later_attempt_keeps_the_name_whichever_is_asked_first(serried, left):
    left(2, 0, a="of the second")
    where = left(1, 0, a="of the first", b="too")
    assert serried("fetch", "last").code == 0
    assert tree(where.results) == {"a": "of the second", "attempt-1": None, "attempt-1/a": "of the first", "b": "too"}


def test_many_files_come_at_once_where_each_takes_its_time(tmp_path, monkeypatch, wait_until):
    """And of two that are to have one name the second sees what the first has done."""
    source, other, target = tmp_path / "source", tmp_path / "other", tmp_path / "to"
    fill(source, **{f"file_{number}": str(number) for number in range(40)})
    fill(other, file_0="older")
    os.utime(other / "file_0", (CREATED - 1, CREATED - 1))
    entries = [*fetch.list_entries(source, ["*"], pytest.fail), *fetch.list_entries(other, ["*"], pytest.fail)]
    at_once, most, are_all, copy_file = [], [], threading.Event(), fetch.copy_file

    def slow(path, place, observe):
        at_once.append(path)
        if len(at_once) == fetch.THREADS:
            are_all.set()
        most.append(len(at_once))
        wait_until(lambda: observe(0) or are_all.is_set(), what="every thread copies a file")
        copy_file(path, place, observe)
        at_once.remove(path)

    monkeypatch.setattr(fetch, "copy_file", slow)
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # however slow this machine is, it waits for files
    report = fetch.copy(entries, target, force=False, observe=lambda _: None)
    assert (len(report.copied), report.kept, report.problems) == (40, ["file_0"], {})
    assert tree(target) == tree(source)
    assert max(most) == fetch.THREADS


def test_while_a_run_writes_nothing_is_copied_that_is_half_written(run, tmp_path):
    results, saved = run.where.results, run.where.checkpoints
    texts = {"log.csv": "1,2\n3", "table.tsv": "1", "out.tfevents.1": "abc", "model.tmp": "x", "model.bin": "x"}
    for name, text in texts.items():
        (results / name).write_text(text)
    fill(saved, **{"step-2__shard": "x"})
    for torn in (results / "torn.pt", saved / "step-2/a.pt"):
        torn.write_bytes(b"PK\x03\x04 and so on")
    selection, settled, seen = Selection(run.record), fetch.SettledFiles(), []
    for _ in range(2):
        found = fetch.find_files(selection, ("*", "checkpoints/*"), tmp_path / "to")
        entries = settled.of(fetch.while_it_runs(found.entries))
        report = fetch.copy(entries, tmp_path / "to", force=False, observe=lambda _: None)
        fetch.note_fetched(selection, found, report, tmp_path / "to")
        seen.append(sorted(report.copied))
        (results / "model.bin").write_text(f"y{len(seen)}")
    assert seen == [
        ["go", "log.csv", "out.tfevents.1"],
        ["a", ODD, "checkpoints/epoch_1", "samples/1", "samples/2", "tool"],
    ]
    assert (tmp_path / "to/log.csv").read_text() == "1,2\n"
    (results / "log.csv").write_text("1,2\n3,4\n")
    found = fetch.find_files(selection, ("*.csv",), tmp_path / "to")
    assert fetch.copy(found.entries, tmp_path / "to", force=False, observe=lambda _: None).copied == ["log.csv"]


class Looks:
    """Answers of a run that is followed: an exception, or the names of files that are there then."""

    def __init__(self, root, *answers):
        self.root, self.answers, self.waits = root, list(answers), []

    def __call__(self, seconds):
        self.waits.append(seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        for name in answer or ():
            (self.root / name).write_text(f"{name}\n")
        entries = fetch.while_it_runs(fetch.list_entries(self.root, ["*"], lambda _: None))
        copy = functools.partial(fetch.copy, target=self.root.with_name("to"))
        return fetch_command._Look(answer is None, entries, copy, lambda _: None)


def test_a_run_is_followed_to_its_end_across_a_connection_that_breaks(tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(fetch_command.time, "sleep", lambda _: None)
    looks = Looks(tmp_path / "run", ["a.csv"], NotConnected("dead"), ["b.csv"], [], None)
    followed = fetch_command.FollowedCopy(tmp_path / "to", force=False)
    followed.until_the_end(looks)
    assert (looks.waits, followed.copied) == ([0.0, 30.0, 30.0, 30.0, 30.0], {"a.csv": 6, "b.csv": 6})
    report = Report(copied=["c"], bytes=1, there=[None] * 3)
    assert [fetch_command._has_failed(followed, report, state) for state in ("FAILED", "COMPLETED")] == [True, False]
    looks = Looks(tmp_path / "run", NotConnected("log in again", code="login-refused"))
    with pytest.raises(NotConnected):
        followed.until_the_end(looks)
    looks = Looks(tmp_path / "run", *[NotConnected("dead")] * 120)
    with pytest.raises(NotConnected):
        followed.until_the_end(looks)
    looks = Looks(tmp_path / "run", ["d.csv"], KeyboardInterrupt())
    with pytest.raises(SystemExit) as ended:
        followed.until_the_end(looks)
    assert ended.value.code == 130
    assert f"stopped copying: 3 files, 18 B in `{tmp_path}/to`" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_is_followed_is_quiet_until_it_writes_and_says_once_what_was_not_copied(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "to/b.csv").mkdir(parents=True)
    (tmp_path / "to/a.csv").write_text("of somebody else\n")
    noted = []
    looks = Looks(tmp_path / "run", [], ["a.csv", "b.csv", "\x1b[31mc.csv"], ["a.csv", "b.csv"], None)

    def look(seconds):
        return looks(seconds)._replace(note=lambda report: noted.append(report.copied))

    fetch_command.FollowedCopy(tmp_path / "to", force=False).until_the_end(look)
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert noted == [["\x1b[31mc.csv"], []]
    assert lines == [
        "copied 1 file, 11 B: `\\x1b[31mc.csv`",
        "warning: different files exist and were kept: `a.csv`",
        "hint: `--force` overwrites them",
        "warning: could not copy `b.csv`: the target is a folder",
    ]


def test_copies_of_a_look_that_broke_off_are_replaced_by_the_next_one(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(fetch_command.time, "sleep", lambda _: None)
    looks, lost = Looks(tmp_path / "run", ["a.csv"], [], None), [NotConnected("dead")]

    def breaking(entries, **how):
        fetch.copy(entries, target=tmp_path / "to", **how)
        (tmp_path / "run/a.csv").write_text("a.csv\nand more\n")
        raise lost.pop()

    def look(seconds):
        found = looks(seconds)
        return found._replace(copy=breaking) if lost else found

    followed = fetch_command.FollowedCopy(tmp_path / "to", force=False)
    followed.until_the_end(look)
    assert (tmp_path / "to/a.csv").read_text() == "a.csv\nand more\n"
    assert followed.copied == {"a.csv": 15}
