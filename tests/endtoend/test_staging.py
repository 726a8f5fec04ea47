"""Data is on each node's own disk before ranks start, and nothing of it is left there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serried.base.files import read_journal

RANK = """\
import json, os, pathlib, sys
data = pathlib.Path(os.environ["SERRIED_DATA_DIR"])
walk = [os.path.join(folder, name) for folder, _, names in os.walk(data, followlinks=True) for name in names]
found = {str(pathlib.Path(path).relative_to(data)): pathlib.Path(path).read_text() for path in sorted(walk)}
assert sys.argv[1:] == [str(data)], sys.argv
print(json.dumps([str(data.joinpath("sets/a").resolve()), found]))
"""
NAME = 'da ta "é"\n$(id)'
FOUND = {f"sets/a/{NAME}/file": "one", "x/y": "two"}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    (folder / "sets" / "a" / NAME).mkdir(parents=True)
    (folder / "sets" / "a" / NAME / "file").write_text("one")
    (folder / "single").write_text("two")
    return folder


def write(project: Path, there: Path, disk: str, more: str = "") -> None:
    (project / "rank.py").write_text(RANK)
    (project / "serried.toml").write_text(f"""\
[experiments.train]
command = {json.dumps([sys.executable, "rank.py", "{data}"])}
resources.ranks = 2
[experiments.train.data]
root = "{there}"
stage = ["sets/a", {{from = "{there}/single", to = "x/y"}}, {more}]
[clusters.local]
local_disk = "{disk}"
[clusters.slurm]
scheduler = "slurm"
local_disk = "{disk}"
""")


def said(place, run: str, rank: int) -> tuple[str, dict[str, str]]:
    return json.loads((place.directory(run) / f"attempts/1/node-{rank // 2}/rank-{rank}.log").read_text())


def staged(place, run: str, node: int) -> dict[str, str]:
    journal = read_journal(place.directory(run) / f"attempts/1/node-{node}/events.jsonl")
    return {event["item"]: event["origin"] for event in journal if event["event"] == "staged-item"}


def test_ranks_find_what_was_staged_and_nothing_stays(local, there, tmp_path, wait_until):
    write(local.project, there, "$NODE_DISK")
    local.environ["NODE_DISK"] = str(tmp_path / "disk")
    run = local.submit()
    assert local.wait(run)[0] == 0
    for rank in (0, 1):
        place, found = said(local, run, rank)
        assert place.startswith(f"{tmp_path}/disk/serried-{os.getuid()}/data/")
        assert found == FOUND
    wait_until(lambda: list((tmp_path / "disk").iterdir()) == [])
    told = [event["event"].split(": ")[0] for event in local.show(run)["timeline"]]
    host = socket.gethostname()
    wanted = [f"{host} has sets/a from the source", f"{host} has x/y from the source", "every node has its data"]
    assert set(wanted) <= set(told)


def test_archives_are_folders_and_what_unpacks_or_mounts_them_is_no_program_of_ranks(
    local, there, tmp_path, wait_until
):
    write(local.project, there, str(tmp_path / "disk"))
    subprocess.run(["tar", "-cf", there / "t.tar", "-C", there, "single"], check=True)
    subprocess.run(["mksquashfs", there / "sets", there / "s.sqsh", "-quiet", "-no-progress"], check=True)
    run = local.submit("--set", 'data.stage=["t.tar", "s.sqsh"]')
    code, shown = local.wait(run)
    assert (code, shown["message"]) == (0, "every rank exited with status 0")
    assert said(local, run, 1)[1] == {f"s/a/{NAME}/file": "one", "t/single": "two"}
    wait_until(lambda: list((tmp_path / "disk").iterdir()) == [])


KILLS = """\
import os, pathlib, signal
others = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
def words(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""
stage, = [pid for pid in others if b"\\0stage-in\\0" in words(pid)]
os.kill(int(stage), signal.SIGKILL)
print(os.listdir(os.environ["SERRIED_DATA_DIR"] + "/s"))
"""


def test_a_run_goes_on_where_the_process_that_staged_is_killed(local, there, tmp_path, wait_until):
    write(local.project, there, str(tmp_path / "disk"))
    (local.project / "rank.py").write_text(KILLS)
    subprocess.run(["mksquashfs", there / "sets", there / "s.sqsh", "-quiet", "-no-progress"], check=True)
    run = local.submit("--set", 'data.stage=["s.sqsh"]', "--ranks", "1")
    code, shown = local.wait(run)
    assert (code, shown["message"]) == (0, "every rank exited with status 0")
    assert (local.directory(run) / "attempts/1/node-0/rank-0.log").read_text() == "['a']\n"
    wait_until(lambda: list((tmp_path / "disk").glob("*/jobs/*")) == [])


@pytest.mark.slurm
def test_on_two_nodes_the_second_gets_it_from_the_first(slurm, there, tmp_path, wait_until):
    """Both have the same disk here, and know it: each is told of its own by what Slurm calls it."""
    write(slurm.project, there, f"{tmp_path}/disk-$SLURMD_NODENAME")
    run = slurm.submit("--nodes", "2")
    assert slurm.wait(run)[0] == 0
    assert [said(slurm, run, rank)[1] for rank in range(4)] == [FOUND] * 4
    assert len({said(slurm, run, rank)[0] for rank in range(4)}) == 2
    assert [staged(slurm, run, node) for node in (0, 1)] == [
        {"sets/a": origin, "x/y": origin} for origin in ("source", "peer")
    ]
    wait_until(lambda: [list(disk.iterdir()) for disk in tmp_path.glob("disk-*")] == [[], []])


def test_without_a_disk_the_source_is_used_where_it_is(local, there):
    write(local.project, there, "$NO_SUCH_VARIABLE")
    run = local.submit()
    assert local.wait(run)[0] == 0
    assert said(local, run, 1) == [str(there / "sets/a"), FOUND]
    assert staged(local, run, 0) == {"sets/a": "in place", "x/y": "in place"}
    events = " ".join(event["event"] for event in local.show(run)["timeline"])
    assert "uses sets/a where it is: `$NO_SUCH_VARIABLE` is not set there" in events


def test_data_that_cannot_be_had_fails_the_launch_and_says_where_and_why(local, there, tmp_path, wait_until):
    shutil.make_archive(str(there / "torn"), "tar", there / "sets")
    with (there / "torn.tar").open("r+b") as file:  # in the middle, where only who unpacks it looks
        file.seek(512)
        file.write(b"x" * 512)
    write(local.project, there, str(tmp_path / "disk"), more='"torn.tar"')
    run = local.submit()
    code, shown = local.wait(run)
    assert (code, shown["state"]) == (1, "LAUNCH_FAILED")
    assert shown["message"].startswith(f"{socket.gethostname()}: data: cannot unpack `{there}/torn.tar`: ")
    wait_until(lambda: list((tmp_path / "disk").iterdir()) == [])
