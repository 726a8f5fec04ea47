"""`serried clean` on the disks of nodes."""

from __future__ import annotations

import json
import os

import pytest

from building import CREATED, as_json
from cleaning import aged, kinds
from serried.base import locks
from serried.base.files import make_directory, write_json
from serried.schedulers.pbs.commands import Pbs
from serried.submission import fetch, script


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
    there = [thing for thing in as_json(serried("du", "--json").out)["things"] if thing["kind"] == "staged data"]

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

    done = serried("clean", "--node", "n1", "--node", "n2", "--node", "n3", "--dry-run", "--json")

    assert (done.code, json.loads(done.out)["dry_run"]) == (2, True)
    assert done.err.startswith("error: `no-such-qsub` is not installed, or not on PATH\n")
    assert list(made.where.path.glob("tidying-*")) == []
    assert serried("clean", "--node", "n1", "--node", "n9").err.startswith(
        "error: none of your runs that still have a directory was on `n9`\n"
    )
