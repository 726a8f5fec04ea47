"""What runs share: Serried itself, snapshots of code, environments."""

from __future__ import annotations

import os
from pathlib import Path

from building import as_json
from cleaning import DAY, OLD, aged, kinds
from serried.base.files import MODES, make_directory, write_json
from serried.cleanup import disk_items, removal
from serried.cleanup.disk_items import Thing
from serried.schema.layout import PROGRAMS
from serried.schema.plan import Environment, Source
from serried.submission import script
from serried.submission.script import Content


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

    sources = [name for kind, name in kinds(done) if kind == "source"]
    assert sources == sorted(
        f".serried/{name}" for name in (f".{last[0].name}.0123abcd", *(path.name for path in last))
    )
    assert sorted(last[0].parent.iterdir()) == sorted([*shared, *needed, *taken, last[0].with_name("mine")])


def test_what_a_submission_stores_again_meanwhile_stays(ended):
    run = ended("k3f9q2")
    agent, _ = brings_along(run, b"1")
    aged(agent.parent)
    found = Thing("source", agent.name, agent, disk_items.newest_within(agent))
    run.where.agent.unlink()

    brings_along(ended("m2n3p4"), b"1")

    assert removal.remove(found) == "it is needed by now"
    assert agent.exists()


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
        ("failed build", "env-2-bbbb"),
        ("failed build", "env-2-bbbb.log"),
        ("half-removed", ".removing-m2n3p4-0123abcd"),
        ("source", "digits/bbbbbbbbbbbbbbbb.tar"),
    ]
    assert sorted(path.name for path in sources.iterdir()) == [
        "aaaaaaaaaaaaaaaa.tar",
        "cccccccccccccccc.tar",
        "mine.tar",
    ]
    assert sorted(path.name for path in built.iterdir()) == [
        "env-1-aaaa", "env-1-aaaa.log", "env-1.json", "env-3-cccc.log", "env-3.claims",
    ]  # fmt: skip
    assert (run.where.path.exists(), half.exists()) == (True, False)

    old = serried("clean", "--older-than", "1d", "-y", "--json")

    assert kinds(old) == []  # this morning's
    clock.passed += 40 * DAY
    old = serried("clean", "--older-than", "30d", "--records", "-y", "--json")
    assert kinds(old) == [
        ("environment", "env-1-aaaa"),
        ("record", "k3f9q2"),
        ("run", "k3f9q2 train"),
        ("source", "digits/aaaaaaaaaaaaaaaa.tar"),
        ("source", "digits/cccccccccccccccc.tar"),
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
    assert (
        stay["wayxxx"]
        == f"its directory may still exist: `{tmp_path / 'not-mounted'}` is not visible from this machine"
    )


def test_code_that_a_submission_finds_to_be_its_own_meanwhile_stays(tmp_path):
    archive = tmp_path / "aaaaaaaaaaaaaaaa.tar"
    archive.touch()
    aged(archive)
    thing = Thing("source", "digits/aaaaaaaaaaaaaaaa.tar", archive, used=OLD)
    os.utime(archive)
    assert removal.remove(thing) == "it is needed by now"
    aged(archive)
    assert (removal.remove(thing), archive.exists()) == (None, False)
