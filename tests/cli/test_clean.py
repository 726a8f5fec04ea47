"""What `serried clean` removes and what it never does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from building import CREATED, as_json
from cleaning import DAY, OLD, aged, kinds
from serried.base import locks
from serried.base.files import MODES, make_directory, write_json
from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import Thing
from serried.schedulers.interface import Job
from serried.schedulers.pbs.commands import Pbs
from serried.schema.layout import PROGRAMS
from serried.schema.plan import After, Data, Environment, Resume, Source, Staged
from serried.submission import fetch, script
from serried.submission.script import Content
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
    assert {one["id"]: one["state"] for one in shown["runs"]} == dict.fromkeys(("k3f9q2", "m2n3p4"), "COMPLETED")
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
    reasons = {
        "runngk": "it is RUNNING",
        "uncert": "it is UNCERTAIN",
        **dict.fromkeys(("parent", "bfrexx", "srcexx"), "run chddxx needs it"),
        "frgnxx": "it holds the plan of another run",
        "nkedxx": "a link leads there",
        "trnxxx": "its record does not have an end",
        "nsetyx": "it is NODE_FAIL, but not for certain before some minutes",
    }
    said = {run: done.err.splitlines()[0] for run, done in zip(runs, each, strict=False)}
    expected = {run: f"error: run `{run}` stays: {why}" for run, why in reasons.items()}
    assert {run: said[run] for run in reasons} == expected
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
    assert list(disk_items.remains(SimpleNamespace(roots=[tmp_path]))) == []

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


def test_du_counts_bytes_and_files_and_follows_no_link(serried, ended, tmp_path):
    run, other = ended("k3f9q2"), ended("m2n3p4")
    make_directory(run.where.results)
    (run.where.results / "a\nb").write_bytes(b"y" * 4904)
    (run.where.results / "sparse").write_bytes(b"z" * 4096)
    os.truncate(run.where.results / "sparse", 50 << 20)
    os.link(run.where.results / "a\nb", run.where.results / "again")
    target = str(tmp_path).ljust(120, "/")  # a link is as large as its target is long
    (run.where.results / "link").symlink_to(target)

    found = as_json(serried("clean", "--list", "--json").out)
    runs = {thing["run"]: thing for thing in found["things"] if thing["kind"] == "run"}
    one = serried("clean", "--list", "k3f9q2")

    assert list(runs) == ["k3f9q2", "m2n3p4"]
    results = runs["k3f9q2"]["parts"]["results"]
    assert (results["bytes"], results["files"]) == (9000 + len(target), 4)
    checkpoints = runs["m2n3p4"]["parts"]["checkpoints"]
    assert (checkpoints["bytes"], checkpoints["files"]) == (1000, 3)
    assert found["bytes"] == sum(thing["bytes"] for thing in found["things"])
    expected = [["k3f9q2", "checkpoints", "1.0", "kB", "3"], ["k3f9q2", "results", "9.1", "kB", "4"]]
    assert [line.split()[:5] for line in one.out.splitlines()][1:3] == expected
    table = serried("clean", "--list").out.splitlines()
    assert table[0].split() == ["WHAT", "NAME", "SIZE", "FILES", "CHECKPOINTS", "RESULTS", "OUTPUTS", "CHANGED"]
    assert table[-1].split()[0] == "all"
    assert json.dumps(disk_items.measure(other.where.path / "nothing").to_json()).startswith('{"bytes": 0, "files": 0')


def test_staged_data_that_stays_on_this_machine_goes_when_it_is_old_and_nobody_uses_it(serried, ended, tmp_path):
    run = ended("k3f9q2")
    site = run.plan.site._replace(local_disk=str(tmp_path / "disk"))
    write_json(run.record.directory.plan, run.plan._replace(site=site).to_json())
    data = tmp_path / "disk" / f"serried-{os.getuid()}" / "data"
    names = ("aaaa", "bbbb", "cccc")
    for name in names:
        make_directory(data / name / "tree")
        (data / name / "tree" / "file").write_bytes(b"x" * 1000)
        write_json(data / name / "facts.json", {"source": f"/pool/{name}"})
        (data / f"{name}.lock").touch()
    make_directory(data / f"dddd{locks.PART}")  # a job is just bringing it
    aged(data)
    os.utime(data / "cccc", (CREATED, CREATED))
    held = locks.hold(data / "bbbb", locks.SHARED)
    there = [
        thing for thing in as_json(serried("clean", "--list", "--json").out)["things"] if thing["kind"] == "staged data"
    ]

    done = serried("clean", "--older-than", "30d", "-y", "--json")

    os.close(held)
    size = 1000 + (data / "cccc" / "facts.json").stat().st_size
    assert [(thing["name"], thing["bytes"]) for thing in there] == [(f"/pool/{name}", size) for name in names]
    assert kinds(done) == [("staged data", "/pool/aaaa")]
    stay = {thing["name"]: thing["needed"] for thing in as_json(done.out)["stay"]}
    assert stay == {"/pool/bbbb": "a job uses it"}
    assert sorted(path.name for path in data.iterdir()) == ["bbbb", "bbbb.lock", "cccc", "cccc.lock", "dddd.part"]


def test_of_a_disk_that_others_may_write_to_nothing_is_taken_for_staged_data(serried, ended, tmp_path):
    run, precious = ended("k3f9q2"), tmp_path / "precious"
    site = run.plan.site._replace(local_disk=str(tmp_path / "disk"))
    write_json(run.record.directory.plan, run.plan._replace(site=site).to_json())
    room = tmp_path / "disk" / f"serried-{os.getuid()}"
    make_directory(precious / "thesis")
    make_directory(room)
    (room / "data").symlink_to(precious)
    aged(precious)

    led_away = serried("clean", "--older-than", "30d", "-y", "--json")
    (room / "data").unlink()
    precious.rename(room / "data")
    room.chmod(0o777)
    shared = serried("clean", "--older-than", "30d", "-y", "--json")

    assert (kinds(led_away), kinds(shared)) == ([], [])
    assert (room / "data" / "thesis").is_dir()


@pytest.mark.usefixtures("_real_processes")
def test_several_nodes_are_looked_at_at_once_whatever_becomes_of_one(serried, make, monkeypatch):
    """Real agents on this machine for two nodes; no scheduler here reaches the third."""
    monkeypatch.setattr(fetch, "_scheduler_for", lambda plan, host: {"n3": "pbs"}.get(host, "local"))  # noqa: ARG005
    monkeypatch.setattr(Pbs, "errand", lambda *_: ("no-such-qsub",))
    made = make(scheduler="local").ending(nodes=["n1", "n2", "n3"])
    write_json(made.where.plan, made.plan.to_json())
    made.where.agent.write_bytes(script.agent().read())

    done = serried("clean", "--host", "n1", "--host", "n2", "--host", "n3", "--dry-run", "--json")

    assert (done.code, json.loads(done.out)["dry_run"]) == (2, True)
    assert done.err.startswith("error: `no-such-qsub` is not installed, or not on PATH\n")
    assert list(made.where.path.glob("tidying-*")) == []
    assert serried("clean", "--host", "n1", "--host", "n9").err.startswith(
        "error: none of your runs that still have a directory was on `n9`\n"
    )


def brings_along(run, content):
    """What the run's directory and its root hold of Serried."""
    for name in ("agent.pyz", "library.zip"):
        store = Path(run.plan.site.root) / PROGRAMS
        script.put(Content.of(content + name.encode()), run.where.path / name, store, MODES["user"])
    return [(run.where.path / name).readlink() for name in ("agent.pyz", "library.zip")]


def test_what_runs_bring_along_of_serried_goes_with_the_last_that_needs_it(serried, ended, make, tmp_path):
    run, other = ended("k3f9q2"), ended("m2n3p4")
    waits = make("p5q6r7")  # nothing says that it has ended
    write_json(waits.where.plan, waits.plan.to_json())
    last, shared, needed = brings_along(run, b"1"), brings_along(other, b"2"), brings_along(waits, b"3")
    moved = ended("s7t8v9")
    taken = brings_along(moved, b"4")
    moved.where.path.rename(tmp_path / "elsewhere")
    moved.record.directory.where.write_text(str(tmp_path / "elsewhere"))
    (last[0].with_name(f".{last[0].name}.0123abcd")).write_text("half written")
    (last[0].with_name("mine")).write_text("x")
    aged(tmp_path / "scratch")

    done = serried("clean", "-y", "k3f9q2", "--json")
    assert kinds(done) == [("run", "k3f9q2 train")]
    done = serried("clean", "-y", "--json")

    sources = [name for kind, name in kinds(done) if kind in ("code", "serried")]
    expected = sorted(f".serried/{name}" for name in (f".{last[0].name}.0123abcd", *(path.name for path in last)))
    assert sources == expected
    assert sorted(last[0].parent.iterdir()) == sorted([*shared, *needed, *taken, last[0].with_name("mine")])


def test_what_a_submission_stores_again_meanwhile_stays(ended):
    run = ended("k3f9q2")
    agent, _ = brings_along(run, b"1")
    aged(agent.parent)
    found = Thing("serried", agent.name, agent, disk_items.newest_within(agent))
    run.where.agent.unlink()

    brings_along(ended("m2n3p4"), b"1")

    assert removal.remove(found) == "it is needed by now"
    aged(agent)
    assert (removal.remove(found), agent.exists()) == (None, False)


def test_what_a_run_needs_stays_by_whatever_spelling_of_the_root(serried, ended, make, tmp_path):
    """Another record says the same root by a link: neither Serried itself nor the code of a live run may go."""
    (tmp_path / "alias").symlink_to("scratch")
    live, other = make("k3f9q2"), ended("m2n3p4")
    source = Source(directory=str(tmp_path / "project"), archive="../../sources/aaaaaaaaaaaaaaaa.tar")
    write_json(live.where.plan, live.plan._replace(source=source).to_json())
    sources = live.where.path.parents[1] / "sources"
    make_directory(sources)
    (sources / "aaaaaaaaaaaaaaaa.tar").write_text("x")
    programs = brings_along(live, b"1")
    site = other.plan.site._replace(root=str(tmp_path / "alias"))
    write_json(other.record.directory.plan, other.plan._replace(site=site).to_json())
    aged(tmp_path / "scratch")

    done = serried("clean", "-y", "--json")

    assert kinds(done) == []
    assert all(path.exists() for path in (*programs, sources / "aaaaaaaaaaaaaaaa.tar"))


def test_without_a_word_only_what_is_of_no_use_goes(serried, ended, tmp_path, clock):
    project = tmp_path / "it's $(id)\n"
    source = Source(directory=str(project), archive="../../sources/aaaaaaaaaaaaaaaa.tar")
    run = ended("k3f9q2")
    built = project / ".serried" / "environments"
    plan = run.plan._replace(source=source, environment=Environment(venv=str(built / "env-1-aaaa")))
    for path in (run.where.plan, run.record.directory.plan):
        write_json(path, plan.to_json())
    sources = run.where.path.parents[1] / "sources"
    half = run.where.path.with_name(".removing-m2n3p4-0123abcd")
    for folder in (sources, half / "checkpoints", built / "env-1-aaaa", built / "env-2-bbbb", built / "env-3.claims"):
        make_directory(folder)
    for name in ("aaaaaaaaaaaaaaaa.tar", "bbbbbbbbbbbbbbbb.tar", "mine.tar"):
        (sources / name).write_text("x")
    write_json(built / "env-1.json", {"folder": "env-1-aaaa", "source": "requirements.txt"})
    for name in ("env-1-aaaa.log", "env-2-bbbb.log", "env-3-cccc.log"):
        (built / name).write_text("x")
    for path in (tmp_path / "scratch", project):
        aged(path)
    (sources / "cccccccccccccccc.tar").write_text("just stored")

    done = serried("clean", "-y", "--json")

    assert kinds(done) == [
        ("code", "digits/bbbbbbbbbbbbbbbb.tar"),
        ("failed build", "env-2-bbbb"),
        ("failed build", "env-2-bbbb.log"),
        ("half-removed", ".removing-m2n3p4-0123abcd"),
    ]
    assert {path.name for path in sources.iterdir()} == {f"{name * 16}.tar" for name in "ac"} | {"mine.tar"}
    assert sorted(path.name for path in built.iterdir()) == [
        "env-1-aaaa", "env-1-aaaa.log", "env-1.json", "env-3-cccc.log", "env-3.claims",
    ]  # fmt: skip
    assert (run.where.path.exists(), half.exists()) == (True, False)

    old = serried("clean", "--older-than", "1d", "-y", "--json")

    assert kinds(old) == []  # this morning's
    clock.passed += 40 * DAY
    old = serried("clean", "--older-than", "30d", "--records", "-y", "--json")
    assert kinds(old) == [
        ("code", "digits/aaaaaaaaaaaaaaaa.tar"),
        ("code", "digits/cccccccccccccccc.tar"),
        ("environment", "env-1-aaaa"),
        ("record", "k3f9q2"),
        ("run", "k3f9q2 train"),
    ]
    assert {thing["problem"] for thing in as_json(old.out)["things"]} == {None}
    assert as_json(serried("ps", "--all", "--json").out)["runs"] == []


def test_what_another_login_node_knows_more_of_stays(serried, ended, tmp_path):
    """Its runs have their records in a home of its own, or their directories where one does not see them from here."""
    there, here = ended("k3f9q2"), ended("m2n3p4")
    built = tmp_path / "project" / ".serried" / "environments"
    source = Source(directory=str(tmp_path / "project"))
    write_json(here.record.directory.plan, here.plan._replace(source=source).to_json())
    for name in ("env-1-aaaa", "env-2-bbbb"):
        make_directory(built / name)
        write_json(built / f"{name[:5]}.json", {"folder": name, "source": "requirements.txt"})
    plan = there.plan._replace(environment=Environment(venv=str(built / "env-1-aaaa")))
    write_json(there.where.plan, plan.to_json())
    there.where.exit.unlink()
    there.record.remove()
    away = ended("wayxxx")
    site = away.plan.site._replace(root=str(tmp_path / "not-mounted"))
    write_json(away.record.directory.plan, away.plan._replace(site=site).to_json())
    aged(built)
    serried("ps")
    away.where.path.rename(tmp_path / "elsewhere")

    done = serried("clean", "--older-than", "2100-01-01", "--records", "-y", "--json")

    assert ("environment", "env-1-aaaa") not in kinds(done)
    assert ("environment", "env-2-bbbb") in kinds(done)
    stay = {thing["name"]: thing["needed"] for thing in as_json(done.out)["stay"]}
    assert stay["env-1-aaaa"] == "run k3f9q2 has it"
    unseen = f"`{tmp_path / 'not-mounted'}` is not visible from this machine"
    assert stay["wayxxx"] == f"its directory may still exist: {unseen}"
