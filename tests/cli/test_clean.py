"""What `serried clean` removes and what it never does."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil

from building import as_json
from cleaning import OLD, aged, kinds
from serried.base.files import make_directory, write_json
from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import Thing
from serried.schedulers.interface import Job
from serried.schema.plan import After, Data, Resume, Staged
from serried.views import console


def test_named_runs_go_and_what_is_known_of_them_stays(serried, ended):
    run, other = ended("k3f9q2"), ended("m2n3p4")

    done = serried("clean", "-y", "k3f9q2")

    assert done.code == 0
    (line,) = done.out.splitlines()[1:]
    assert re.sub(r"[\d.]+ kB +\d+ +\d+m", "SIZE", line) == "run   k3f9q2 train  SIZE ago  COMPLETED, 1 checkpoint"
    assert "1 checkpoint among them" in done.err
    assert (run.where.path.exists(), other.where.path.exists()) == (False, True)
    shown = as_json(serried("ps", "--json", "--all").out)
    assert sorted((one["id"], one["state"]) for one in shown["runs"]) == [
        ("k3f9q2", "COMPLETED"),
        ("m2n3p4", "COMPLETED"),
    ]
    again = serried("clean", "-y", "k3f9q2")
    assert (again.code, again.err) == (0, "nothing to remove\n")


def test_nothing_goes_unless_somebody_says_so(serried, ended, monkeypatch):
    run = ended("k3f9q2")
    run.ending(missing=[{"kind": "results", "host": "n1", "node": 0, "folder": "/disk/x", "files": 2}])

    shown = serried("clean", "--dry-run", "k3f9q2")
    refused = serried("clean", "k3f9q2")
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    declined = serried("clean", "k3f9q2")

    assert (shown.code, refused.code, declined.code) == (0, 2, 0)
    assert shown.out.endswith("COMPLETED, 1 checkpoint, results still on n1\n")
    assert refused.err.endswith("without confirmation\n\nhint: pass `--yes`\n")
    assert declined.err.endswith("[y/N] nothing was removed\n")
    assert (run.where.checkpoints / "step-1" / "weights").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert serried("clean", "k3f9q2").code == 0
    assert not run.where.path.exists()


def needed(make, ended, slurm):
    """Runs none of which may go."""
    slurm.tell(Job("7", None, "RUNNING"))
    running = make("runngk", job="7")
    running.attempt()
    make("uncert", job=None).submit("uncertain")
    parent, before, source = ended("parent"), ended("bfrexx"), ended("srcexx")
    slurm.tell(Job("8", None, "PENDING"))
    child = make("chddxx", job="8")
    plan = child.plan._replace(
        resume=Resume((str(parent.where.checkpoints / "step-1"),), "parent"),
        after=(After("bfrexx", "train", before.plan.directory),),
        data=Data(stage=(Staged(str(source.where.results), "results"),)),
    )
    write_json(child.record.directory.plan, plan.to_json())
    foreign = ended("frgnxx")
    write_json(foreign.where.plan, {**foreign.plan.to_json(), "run": "anther"})
    linked = ended("nkedxx")
    linked.where.path.rename(linked.where.path.with_name("elsewhere"))
    linked.where.path.symlink_to("elsewhere")
    ended("trnxxx").record.directory.plan.write_text("{")
    slurm.tell(Job("9", None, "NODE_FAIL"))
    make("nsetyx", job="9").attempt()  # no exit.json yet
    lost = ended("stxxxx", name="lost")
    lost.where.exit.unlink()
    lost.record.remove()
    return [
        "runngk",
        "uncert",
        "parent",
        "bfrexx",
        "srcexx",
        "chddxx",
        "frgnxx",
        "nkedxx",
        "trnxxx",
        "nsetyx",
        "stxxxx",
    ]


def test_what_goes_on_or_is_needed_stays_whoever_asks(serried, make, ended, slurm):
    runs = needed(make, ended, slurm)
    (folder,) = {make("anyrun").where.path.parent}
    serried("ps")

    all_of_them = serried("clean", "--older-than", "2100-01-01", "-y", "--json")
    each = [serried("clean", "-y", run) for run in runs[:-1]]

    assert kinds(all_of_them) == []
    assert all((folder / run).exists() for run in runs if run != "uncert")
    assert {done.code for done in each} == {2}
    assert [done.err.splitlines()[0] for done in each][:7] == [
        "error: run `runngk` stays: it is RUNNING",
        "error: run `uncert` stays: it is UNCERTAIN",
        "error: run `parent` stays: run chddxx needs it",
        "error: run `bfrexx` stays: run chddxx needs it",
        "error: run `srcexx` stays: run chddxx needs it",
        each[5].err.splitlines()[0],
        "error: run `frgnxx` stays: it holds the plan of another run",
    ]
    assert each[8].err.startswith("error: run `trnxxx` stays: its record does not have an end\n")
    assert each[7].err.startswith("error: run `nkedxx` stays: a link leads there\n")
    assert each[9].err.startswith(
        "error: run `nsetyx` stays: it is NODE_FAIL, but not for certain before some minutes\n"
    )
    stay = {thing["name"].split()[0]: thing["needed"] for thing in as_json(all_of_them.out)["stay"]}
    assert stay["stxxxx"] == "its state is not known here"


def test_what_is_needed_by_the_time_of_the_answer_stays(serried, make, ended, slurm, monkeypatch):
    parent, other = ended("parent"), ended("bfrexx")
    slurm.tell(Job("8", None, "PENDING"))

    def submit_meanwhile(_):
        child = make("chddxx", job="8")
        plan = child.plan._replace(after=(After("parent", "train", parent.plan.directory),))
        write_json(child.record.directory.plan, plan.to_json())
        return True

    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", submit_meanwhile)

    done = serried("clean", "--older-than", "2100-01-01")

    assert (done.code, parent.where.path.exists(), other.where.path.exists()) == (1, True, False)
    assert "warning: parent train stays: it is needed by now\n" in done.err


def test_two_at_once_and_one_that_was_interrupted_lose_nothing_else(ended, monkeypatch):
    run, other = ended("k3f9q2"), ended("m2n3p4")
    stays = other.where.path
    thing = Thing("run", "k3f9q2", run.where.path, run="k3f9q2", has_record=False)
    monkeypatch.setattr(removal.tree, "remove", lambda _: False)

    assert (removal.remove(thing) or "").startswith("its remaining files are in ")

    (aside,) = stays.parent.glob(".removing-*")
    assert not run.where.path.exists()
    assert removal.remove(thing) is None
    monkeypatch.undo()
    assert removal.remove(Thing("half-removed", aside.name, aside)) is None
    assert [path.name for path in stays.parent.iterdir()] == ["m2n3p4"]


def test_what_somebody_else_removes_while_it_is_looked_at_is_none(tmp_path, monkeypatch):
    experiment = tmp_path / "digits" / "train"
    make_directory(experiment / ".removing-m2n3p4-0123abcd")
    names, scan = disk_items._names, os.scandir

    def names_of_what_goes(folder):
        found = names(folder)
        if folder == experiment:
            (experiment / found[0]).rmdir()
        return found

    monkeypatch.setattr(disk_items, "_names", names_of_what_goes)
    assert list(disk_items.half_removed(tmp_path)) == []

    (experiment / "stays").touch()
    (experiment / "goes").touch()
    aged(experiment)

    @contextlib.contextmanager
    def scan_what_goes(folder):
        with scan(folder) as entries:
            found = list(entries)
        (experiment / "goes").unlink()
        os.utime(experiment, (OLD, OLD))
        yield found

    monkeypatch.setattr(os, "scandir", scan_what_goes)
    assert disk_items.newest_within(experiment) == OLD


def test_a_run_that_another_clean_removes_meanwhile_is_no_error(serried, ended, monkeypatch):
    run, look = ended("aaaaaa"), disk_items.refusal

    def look_late(path, name):
        shutil.rmtree(run.where.path, ignore_errors=True)
        return look(path, name)

    monkeypatch.setattr(disk_items, "refusal", look_late)
    assert serried("clean", "-y", "aaaaaa").code == 0
