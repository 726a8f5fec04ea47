"""What is staged, in a shell, beside a run, in a container, and ahead of the job that needs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import containing

READ = 'echo "$SERRIED_DATA_DIR"; cat -- "$SERRIED_DATA_DIR/it\'s/one"'


@pytest.fixture
def there(local, tmp_path) -> Path:
    """An experiment whose data goes to a disk of this machine's own; returned is that disk."""
    (tmp_path / "pool" / "it's").mkdir(parents=True)
    (tmp_path / "pool" / "it's" / "one").write_text("its text\n")
    disk = tmp_path / "disk"
    (local.project / "serried.toml").write_text(
        containing.table("experiments.train", {"command": ["bash", "-c", f"{READ}; sleep 1000"]})
        + containing.table("experiments.train.data", {"root": str(tmp_path / "pool"), "stage": ["it's"]})
        + containing.table("clusters.local", {"local_disk": str(disk)})
    )
    return disk


def text_of(disk: Path, output: str) -> str:
    place, text = output.split("\n", 1)
    assert place.startswith(f"{disk}/serried-{os.getuid()}/jobs/")
    return text


def test_a_shell_has_its_data_first_and_leaves_nothing(local, there):
    done = local.serried("shell", "train", "--", "bash", "-c", f"{READ}; exit 3")
    assert (done.returncode, text_of(there, done.stdout)) == (3, "its text\n")
    assert list(there.iterdir()) == []


def test_a_shell_has_an_archive_only_unpacked(local, there, tmp_path):
    subprocess.run(["tar", "-cf", tmp_path / "pool" / "t.tar", "-C", tmp_path / "pool" / "it's", "one"], check=True)
    packed = f"find {there} -name archive"
    wait = f'cat "$SERRIED_DATA_DIR/t/one"; for n in {{1..1200}}; do [[ -z $({packed}) ]] && exit 4; sleep 0.1; done'
    done = local.serried("shell", "train", "--set", 'data.stage=["t.tar"]', "--", "bash", "-c", wait)
    assert (done.returncode, done.stdout) == (4, "its text\n")


def test_a_shell_whose_data_cannot_be_had_does_not_begin(local, there, tmp_path):
    (tmp_path / "pool" / "it's" / "one").unlink()
    (tmp_path / "pool" / "x.tgz").write_bytes(b"\x1f\x8b and then something else")
    done = local.serried("shell", "train", "--set", 'data.stage=["x.tgz"]', "--", "echo", "began")
    assert (done.returncode, done.stdout) == (70, "")
    assert "data: " in done.stderr.splitlines()[-1]
    assert f"{tmp_path}/pool/x.tgz" in done.stderr.splitlines()[-1]
    assert list(there.iterdir()) == []


def test_who_joins_a_run_has_its_data(local, there, wait_until):
    run = local.submit("train")
    log = local.directory(run) / "attempts/1/node-0/rank-0.log"
    wait_until(lambda: log.exists() and log.read_text().endswith("its text\n"))
    done = local.serried("shell", run, "--", "bash", "-c", READ)
    assert (done.returncode, done.stdout) == (0, log.read_text())
    assert text_of(there, done.stdout) == "its text\n"
    local.serried("stop", "-y", run)
    assert local.wait(run)[1]["state"] == "CANCELLED"
    wait_until(lambda: list(there.iterdir()) == [], what="nothing is left")


@pytest.mark.parametrize("contained", [True, False])
def test_a_container_sees_it(local, there, tmp_path, contained):
    local.environ["PATH"] = containing.path_with("ch-run")
    said = {"image": str(containing.skeleton(tmp_path / "root")), "runtime": "ch-run", "contained": contained}
    with (local.project / "serried.toml").open("a") as file:
        file.write(containing.table("experiments.train.container", {**said, "binds": ["/usr"]}))
    done = local.serried("shell", "train", "--", "bash", "-c", READ)
    assert (done.returncode, text_of(there, done.stdout)) == (0, "its text\n"), done.stderr


def test_it_can_be_there_before_the_job_that_needs_it(local, there):
    made = ("--set", 'data.prepare=["bash", "-c", "echo >>times"]', "--set", "environment.setup=export A=1")
    keeps = ("--cluster", "local", "--set", "clusters.local.data_cache=1G", *made)
    warms = [local.serried("stage", "train", "--warm", "--json", *keeps) for _ in range(2)]
    brought = [json.loads(done.stdout)["brought"] for done in warms]
    assert [[(it["item"], it["origin"], it["bytes"]) for it in each] for each in brought] == [
        [("it's", "source", 9)],
        [("it's", "cache", 9)],
    ]
    kept = json.loads(local.serried("clean", "--list", "--json").stdout)["things"]
    assert [thing["name"] for thing in kept if thing["kind"] == "staged data"] == [f"{there.parent}/pool/it's"]
    done = local.serried("shell", "train", *made, "--", "bash", "-c", READ)
    assert text_of(there, done.stdout) == "its text\n"
    assert (local.project / "times").read_text() == "\n", "what makes the data ran once"
