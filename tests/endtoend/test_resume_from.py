"""A run that begins from another's checkpoint: what its ranks find, and what its readers are told."""

from __future__ import annotations

import json
import sys

SCRIPT = """\
import json, os, pathlib, sys, time
here = pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"])
attempt, rank = os.environ["SERRIED_ATTEMPT"], os.environ["RANK"]
with open(f"{os.environ['SERRIED_RESULTS_DIR']}/{attempt}-{rank}.json", "w") as file:
    json.dump([sys.argv[1:], os.environ.get("SERRIED_RESUME_FROM"), "SERRIED_RESUME" in os.environ], file)
(here / f"epoch {attempt}.ckpt").write_text("weights")
(here / "torn.ckpt").write_text("")
while "wait" in sys.argv and attempt == "1":
    time.sleep(0.05)
    if pathlib.Path(os.environ["SERRIED_STOP_FILE"]).exists():
        sys.exit(85)
"""


def told(place, run, attempt=1):
    return [json.loads((place.directory(run) / "results" / f"{attempt}-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_program_of_any_kind_is_told_what_to_go_on_from(local, wait_until):
    (local.project / "train.py").write_text(SCRIPT)
    command = ("--ranks", "2", "--", sys.executable, "train.py", "--from={resume}")
    first = local.submit("--name", "it's the first", *command)
    assert local.wait(first)[0] == 0
    assert told(local, first) == [[["--from="], None, False]] * 2

    saved = f"{local.directory(first)}/checkpoints/epoch 1.ckpt"
    second = local.submit("--resume", "it's the first", "--set", "limit.restarts=1", *command, "wait")
    wait_until(lambda: list(local.directory(second).glob("results/1-*.json")))
    local.ask_to_save(second)
    assert local.wait(second)[0] == 0
    assert told(local, second) == [[[f"--from={saved}", "wait"], saved, False]] * 2
    own = f"{local.directory(second)}/checkpoints/epoch 1.ckpt"
    assert told(local, second, attempt=2) == [[[f"--from={own}", "wait"], own, False]] * 2

    torn = (
        f"serried: skipping checkpoint {local.directory(second)}/checkpoints/torn.ckpt: it was not written completely"
    )
    assert torn in (local.directory(second) / "scheduler.log").read_text()

    shown = local.show(second)
    assert (shown["resumed_from"], shown["plan"]["resume"]) == (first, {"checkpoints": [saved], "run": first})
    went_on = [event["event"] for event in shown["timeline"] if " resume from " in event["event"]]
    assert went_on == ["ranks resume from epoch 1.ckpt"] * 2
    assert f"\n  resumes     {first}, epoch 1.ckpt\n" in local.serried("show", second).stdout
    listed = json.loads(local.serried("ps", "--json").stdout)["runs"]
    assert {run["id"]: run["resumed_from"] for run in listed} == {first: None, second: first}


def test_nothing_is_submitted_where_there_is_nothing_to_begin_from(local):
    done = local.serried("submit", "--cluster", "local", "--resume", "nosuch", "--", sys.executable, "-V")
    error = "`nosuch` is neither a run nor a path in this folder"
    said = f"error: {error}\n\nhint: serried init\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


KNOWS_NOTHING = """\
import os, signal, sys, zipfile
write, read = sys.argv[1:]
step = int(zipfile.ZipFile(read).read("step")) if read else 0
print("from", step, os.path.basename(read), os.path.dirname(read) == write)
for step in range(step + 1, 4):
    if step == 3 and not read:
        torn = open(f"{write}/epoch-3.pt", "wb", 0)
        torn.write(b"PK\\3\\4 half of it")
        signal.pause()
    with zipfile.ZipFile(f"{write}/epoch-{step}.tmp", "w") as archive:
        archive.writestr("step", str(step))
    os.rename(f"{write}/epoch-{step}.tmp", f"{write}/epoch-{step}.pt")
"""
"""Writes to the node's disk, reads what lasts, and has never heard of a limit. Its first attempt ends within a save."""


def test_a_program_that_knows_nothing_goes_on_from_what_was_brought_from_its_nodes_disk(local, tmp_path, wait_until):
    (local.project / "train.py").write_text(KNOWS_NOTHING)
    (local.project / "serried.toml").write_text(f'[clusters.local]\nlocal_disk = "{tmp_path}/disk"\n')
    run = local.submit(
        *("--ranks", "1", "--set", "limit.warn_before=1s", "--set", "limit.grace=1s", "--set", "limit.restarts=3"),
        *("--set", 'checkpoint.watch=["{checkpoints}/*.pt"]', "--set", "checkpoint.sync_every=1s"),
        *("--", sys.executable, "train.py", "{checkpoints}", "{resume}"),
    )
    kept = local.directory(run) / "checkpoints"
    wait_until(lambda: {path.name for path in kept.glob("*.pt")} >= {"epoch-1.pt", "epoch-2.pt"})
    wait_until(lambda: list((tmp_path / "disk").rglob("epoch-3.pt")))
    local.ask_to_save(run)
    assert local.wait(run)[0] == 0
    printed = [local.serried("logs", run, "--attempt", number).stdout for number in ("1", "2")]
    assert printed == ["from 0  False\n", "from 2 epoch-2.pt False\n"]
    assert sorted(path.name for path in kept.iterdir()) == ["epoch-1.pt", "epoch-2.pt", "epoch-3.pt"]
    assert [attempt["exit"]["cause"] for attempt in local.show(run)["attempts"]] == ["limit", None]
