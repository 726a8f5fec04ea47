"""`serried track sync`, with a `wandb` that records its calls: the service itself needs an account and internet."""

from __future__ import annotations

import json
import os
import socket

import pytest

from building import as_json
from serried.base.files import make_directory, write_json
from serried.cli import track
from serried.schema.plan import Environment, Source, Track

RECORDS = """#!/bin/bash
[ -z "$WANDB_API_KEY" ] || echo "$*" >> "$RECORDED"
echo "$WANDB_API_KEY ${WANDB_BASE_URL##*:}" >> "$RECORDED.accounts"
case "$*" in *slow*) echo "wandb: uploading"; exec sleep 1000;; esac
case "$*" in *refused*) echo "wandb: ERROR 401" >&2; exit 1;; esac
for path in "${@:4}"; do for log in "$path"/run-*.wandb; do touch "$log.synced"; done; done
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    program = tmp_path / "programs" / "wandb"
    program.parent.mkdir()
    program.write_text(RECORDS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("RECORDED", str(tmp_path / "recorded"))
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield lambda: (tmp_path / "recorded").read_text().splitlines() if (tmp_path / "recorded").exists() else []


@pytest.fixture
def offline(ended):
    """`offline("k3f9q2", "1-k3f9q2")` is an ended run with this folder of wandb."""

    def make(run, *names, **settings):
        made = ended(run)
        if settings:
            write_json(made.record.directory.plan, made.plan._replace(**settings).to_json())
        place = made.where
        for name in names:
            folder = place.results / "tracking" / "wandb" / f"offline-run-{name}"
            make_directory(folder)
            (folder / f"run-{name.partition('-')[2]}.wandb").touch()
        return place.results / "tracking" / "wandb"

    return make


def test_all_runs_that_are_not_uploaded_yet_are_uploaded_attempt_by_attempt(serried, offline, calls):
    folder = offline("k3f9q2", "2-k3f9q2", "1-k3f9q2")
    offline("m2n3p4")
    paths = [f"{folder}/offline-run-{number}-k3f9q2" for number in (1, 2)]
    rows = [{"run": "k3f9q2", "id": "k3f9q2", "path": path, "is_synced": False} for path in paths]

    assert as_json(serried("track", "sync", "--dry-run", "--json").out)["runs"] == rows
    assert calls() == []
    done = serried("track", "sync", "--json")
    assert as_json(done.out)["runs"] == [{**row, "is_synced": True} for row in rows]
    assert calls() == [f"sync --yes --include-synced {' '.join(paths)}"]
    again = serried("track", "sync")
    assert (again.code, again.err) == (0, "note: no offline run waits to be uploaded\n")
    assert len(calls()) == 1
    log = folder / "offline-run-1-k3f9q2" / "run-k3f9q2.wandb"
    os.utime(log, (4e9, 4e9))  # its run has written more
    assert serried("track", "sync").code == 0
    assert calls()[1:] == [f"sync --yes --include-synced {paths[0]}"]
    assert "secret" not in json.dumps([done.out, done.err, calls()])


def test_each_process_of_a_run_is_uploaded_alone_and_a_failure_leaves_the_rest(serried, offline, calls):
    offline("k3f9q2", "1-refused", "2-k3f9q2-r1")
    done = serried("track", "sync", "k3f9q2")
    assert done.code == 1
    assert "`wandb sync` failed for run `k3f9q2`" in done.err
    assert "wandb: ERROR 401" in done.err
    assert len(calls()) == 2
    assert [line.split()[2] for line in done.out.splitlines()] == ["SYNCED", "no", "yes"]


def test_follow_uploads_once_more_after_the_end(serried, offline, calls):
    offline("k3f9q2", "1-k3f9q2")
    assert serried("track", "sync", "k3f9q2", "--follow").code == 0
    assert len(calls()) == 1


def test_without_a_key_the_command_says_where_it_looks(serried, offline, calls, monkeypatch):
    offline("k3f9q2", "1-k3f9q2")
    monkeypatch.delenv("WANDB_API_KEY")
    done = serried("track", "sync")
    refusal = "error: wandb has no key here\n\nhint: run `wandb login`, or set `WANDB_API_KEY`\n"
    assert (done.code, done.err, calls()) == (1, refusal, [])


def test_the_experiments_server_and_the_projects_key_are_used_for_each_run(
    serried, offline, calls, monkeypatch, tmp_path
):
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / ".env").write_text("WANDB_API_KEY=of-the-project\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        here = Environment(env={"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_MODE": "disabled"})
        source = Source(directory=str(tmp_path / "digits"))
        offline("k3f9q2", "1-k3f9q2", environment=here, source=source)
        offline("m2n3p4", "1-m2n3p4", environment=here._replace(env={**here.env, "WANDB_API_KEY": "own"}))
        assert serried("track", "sync").code == 0
    assert len(calls()) == 2
    accounts = (tmp_path / "recorded.accounts").read_text().splitlines()
    assert sorted(accounts) == [f"of-the-project {port}", f"own {port}"]


def test_a_run_without_a_server_does_not_hold_up_the_others(serried, offline, calls):
    gone = Environment(env={"WANDB_BASE_URL": "http://127.0.0.1:1"})
    offline("a2a2a2", "1-a2a2a2", environment=gone)
    offline("k3f9q2", "1-k3f9q2")
    done = serried("track", "sync", "a2a2a2", "k3f9q2")
    assert (done.code, len(calls())) == (3, 1)
    assert done.err == (  # `wandb sync` would retry for ever
        "error: cannot connect to `http://127.0.0.1:1`\n\n"
        "hint: run this command on a machine with internet, such as a login node\n"
    )
    assert [line.split()[2] for line in done.out.splitlines()] == ["SYNCED", "no", "yes"]


def test_follow_checks_the_server_before_there_are_values(serried, make, calls, monkeypatch):
    run = make("k3f9q2")
    write_json(run.record.directory.plan, run.plan._replace(track=Track(("wandb",))).to_json())
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    assert serried("track", "sync", "k3f9q2", "--follow").code == 3
    assert calls() == []


def test_an_upload_that_takes_too_long_is_a_failed_one(serried, offline, calls, monkeypatch):
    monkeypatch.setattr(track, "SYNC_SECONDS", 5.0)
    offline("k3f9q2", "1-slow", "2-k3f9q2-r1")
    done = serried("track", "sync", "k3f9q2")
    assert done.code == 1
    assert "`wandb sync` failed for run `k3f9q2`:" in done.err
    assert "wandb: uploading" in done.err
    assert "not done within 5 s" in done.err
    assert len(calls()) == 2
    assert [line.split()[2] for line in done.out.splitlines()] == ["SYNCED", "no", "yes"]
