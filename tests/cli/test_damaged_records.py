"""Each file of a run, damaged in each way: that one run is UNKNOWN or says so, and commands about others go on."""

from __future__ import annotations

import itertools
import json
import os
import shutil

import pytest

from building import CREATED, live_of
from serried.fs.files import write_json
from serried.records.index import _path
from serried.records.record import Record
from serried.schedulers.interface import Job


def _zeros(path):
    path.write_bytes(b"\0" * 4096)


def _truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _null_in_a_value(path):
    text = path.read_text()
    path.write_text(json.dumps(_with_nulls(json.loads(text))) if path.suffix == ".json" else f"/x\0{text}")


def _with_nulls(value):
    if isinstance(value, dict):
        return {name: _with_nulls(item) for name, item in value.items()}
    return f"{value}\0" if isinstance(value, str) else value


def _special(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


def _huge(path):
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _values(other):
    """Every value of the document has another type."""

    def damage(path):
        text = path.read_text()
        try:
            document = json.loads(text)
        except ValueError:
            path.write_text(f"{json.dumps(other)}\n")
        else:
            path.write_text(json.dumps({name: 1 if name == "schema" else other for name in document}))

    return damage


DAMAGES = {
    "zeros": _zeros,
    "truncated": _truncated,
    "a list": lambda path: path.write_text("[1]\n"),
    "invalid UTF-8": lambda path: path.write_bytes(b'{"schema": 1, "name": "\xff\xfe"}\n'),
    "NUL in texts": _null_in_a_value,
    "numbers": _values(7),
    "lists": _values([7]),
    "a FIFO": _special(os.mkfifo),
    "a directory": _special(os.mkdir),
    "a loop of links": _special(lambda path: path.symlink_to(path.name)),
    "huge": _huge,
}

ABOUT_OTHERS = [
    ("ps", "--all"),
    ("du",),
    ("clean", "--dry-run", "--older-than", "1s", "--records"),
    ("report", "sssssd"),
]
ABOUT_THE_RUN = [(*words, "dddddd") for words in (("show",), ("why",), ("stop", "-y"))]


def _running(make, slurm):
    run = make("dddddd", job="1").live(live_of(CREATED))
    slurm.tell(Job("1", None, "RUNNING"))
    return run.journal({"t": 1.0, "event": "go"}).log(0, "hello\n")


def _ended(make, _):
    return make("dddddd", job="1").ending("FAILED").journal({"t": 1.0, "event": "go"}).log(0, "hello\n")


def _array(make, slurm):
    run = make("dddddd", job="1", indices=range(3)).ending(task=0).ending("FAILED", task=1).link(2, "9", task=2)
    slurm.tell(Job("1", 2, "RUNNING"))
    run.attempt(task=2)
    return run


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("begin", [_running, _ended, _array])
def test_a_damaged_file_harms_no_command_about_others(begin, make, slurm, serried, tmp_path):
    whole = make("sssssd", name="whole", job="3").ending().log(0, "hello\n")
    run = begin(make, slurm)
    for each in (whole, run):
        write_json(each.where.plan, each.plan.to_json())
    serried("ps", "--all")  # writes what readers keep
    kept = {folder: tmp_path / f"kept-{name}" for name, folder in enumerate((_path().parent, tmp_path / "scratch"))}
    for folder, copy in kept.items():
        shutil.copytree(folder, copy)

    failed = []
    for path, damage in itertools.product(_files(kept), DAMAGES):
        for folder, copy in kept.items():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
        DAMAGES[damage](path)
        for command in (*ABOUT_OTHERS, *ABOUT_THE_RUN):
            try:
                done = serried(*command)
                if command in ABOUT_OTHERS and done.code:
                    failed.append((path, damage, command, done.err))
            except Exception as error:  # noqa: BLE001 - a traceback for the user; all are tried
                failed.append((path, damage, command, repr(error)))
    assert failed == []


def _files(folders):
    """What Serried wrote for the damaged run, and for all runs."""
    found = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if "sssssd" not in path.parts and path.suffix != ".log"]


def test_a_run_whose_record_is_zeros_is_unknown_with_its_reason(make, serried):
    make("sssssd", job="3").ending()
    run = make("dddddd", job="1")
    _zeros(run.record.directory.plan)
    done = serried("why", "dddddd")
    assert "UNKNOWN" in done.out
    assert "plan.json of run `dddddd` cannot be read (torn or not JSON)" in done.out


def test_a_path_of_zeros_is_taken_from_the_plan(make):
    run = make("dddddd", job="1")
    _zeros(run.record.directory.where)
    assert Record.load("dddddd").where.path == run.where.path
