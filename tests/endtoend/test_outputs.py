"""What a script from a laptop writes by relative paths is not lost in an array that was requeued."""

from __future__ import annotations

import sys

from place import Place
from trees import tree

FILE = f"""
[experiments.sweep]
command = ["{sys.executable}", "train.py"]
resources = {{ ranks = 1, cpus = 1, mem = "200M", time = "10m" }}
"""

TRAIN = """\
import os, time
from pathlib import Path

task, attempt = os.environ["SERRIED_TASK"], os.environ["SERRIED_ATTEMPT"]
os.makedirs("results", exist_ok=True)
with open("results/log.txt", "a") as log:
    log.write(f"attempt {attempt} of {task}\\n")
if attempt == "1":
    saved = Path(os.environ["SERRIED_CHECKPOINT_DIR"], "step-1")
    saved.mkdir()
    (saved / "COMPLETE").write_text('{"schema": 1, "files": {}}')
    while not Path(os.environ["SERRIED_STOP_FILE"]).exists():
        time.sleep(0.05)
    raise SystemExit(85)
Path("model.pt").write_text(f"weights of {task}")
"""


def test_outputs_of_an_array_that_was_requeued_are_fetched_and_never_cleaned_before(place: Place, wait_until, tmp_path):
    (place.project / "serried.toml").write_text(FILE)
    (place.project / "train.py").write_text(TRAIN)
    run = place.submit("sweep", "--array", "0,1", "--set", "limit.restarts=1")
    tasks = place.directory(run) / "tasks"
    for index in (0, 1):
        wait_until(lambda index=index: (tasks / f"{index}/source/results/log.txt").exists())
        place.ask_to_save(run, task=index)

    status, end = place.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED"), place.serried("why", run).stdout
    assert (place.show(run)["outputs"]["files"], place.show(f"{run}/1")["outputs"]["files"]) == (4, 2)
    refused = place.serried("clean", "-y", run)
    assert (refused.returncode, "4 files" in refused.stderr) == (2, True)
    fetched = place.serried("fetch", run, "--to", str(tmp_path / "here"))
    assert fetched.returncode == 0, fetched.stderr
    assert tree(tmp_path / "here") == {
        f"{index}/{name}": text
        for index in (0, 1)
        for name, text in {
            "model.pt": f"weights of {index}",
            "results/log.txt": f"attempt 1 of {index}\nattempt 2 of {index}\n",
        }.items()
    }
    assert place.serried("clean", "-y", run).returncode == 0
    assert not tasks.exists()
