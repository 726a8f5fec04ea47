"""`serried rerun`: the same plan and code, from where the run had come to."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

SCRIPT = """\
import os, pathlib, sys
print("old", os.environ["SECRET_WORD"], os.environ["PLAIN"], os.environ.get("SERRIED_RESUME_FROM", "-"), *sys.argv[1:])
saved = pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"], "epoch-1.ckpt")
if os.environ.get("SERRIED_TASK") != "1":
    saved.write_text("weights")
sys.exit(3 if "SERRIED_RESUME_FROM" not in os.environ and os.environ.get("SERRIED_TASK") != "1" else 0)
"""

TOML = """\
[defaults.environment]
env = { PLAIN = "plain" }
secrets = ["SECRET_WORD"]
[experiments.train]
command = [%s, "train.py", "{config.lr}"]
resources.ranks = 1
config.lr = 1
"""


def rerun(place, *arguments):
    done = place.serried("rerun", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["runs"][0]["id"]
    place.wait(run)
    return run, done.stderr


def said(place, run):
    return place.serried("logs", run).stdout


def test_a_run_goes_on_in_a_new_one_whatever_has_become_of_the_project(local):
    project = local.project
    (project / "serried.toml").write_text(TOML % json.dumps(sys.executable))
    (project / "train.py").write_text(SCRIPT)
    local.environ["SECRET_WORD"] = "first"
    first = local.submit()
    assert local.wait(first)[1]["state"] == "FAILED"
    (project / "train.py").write_text(SCRIPT.replace("old", "new"))
    (project / "serried.toml").write_text((TOML % json.dumps(sys.executable)).replace("plain", "changed"))
    local.environ["SECRET_WORD"] = "second"
    saved = f"{local.directory(first)}/checkpoints/epoch-1.ckpt"

    second, _ = rerun(local, first)
    assert said(local, second) == f"old second plain {saved} 1\n"
    shown = local.show(second)
    assert (shown["state"], shown["rerun_of"], shown["resumed_from"]) == ("COMPLETED", first, first)
    assert shown["source"] == local.show(first)["source"]
    kept = ("command", "config", "allocation", "name", "experiment", "environment")
    assert {key: shown["plan"][key] for key in kept} == {key: local.show(first)["plan"][key] for key in kept}

    third, warned = rerun(local, second, "--new-code", "--name", "it's the third")
    assert said(local, third) == f"new second plain {local.directory(second)}/checkpoints/epoch-1.ckpt 1\n"
    assert f"note: run `{second}` has completed, so little may be left to train" in warned
    fresh, _ = rerun(local, second, "--fresh")
    assert said(local, fresh) == f"old second plain {saved} 1\n"

    shutil.rmtree(Path(shown["source"]["archive"]).parent)
    done = local.serried("rerun", first)
    assert done.returncode == 2
    assert f"error: the code of run `{first}` does not exist any more" in done.stderr
    del local.environ["SECRET_WORD"]
    assert "error: the secret `SECRET_WORD` is not set" in local.serried("rerun", first, "--new-code").stderr


def test_a_task_goes_on_by_itself_and_an_array_each_for_itself(local):
    (local.project / "train.py").write_text(SCRIPT)
    (local.project / "commands.txt").write_text("".join(f"{sys.executable} train.py {word}\n" for word in "abc"))
    local.environ.update(SECRET_WORD="x", PLAIN="y")
    first = local.submit("--commands", "commands.txt", "--ranks", "1")
    local.wait(first)

    words = [f"{sys.executable} train.py {word}" for word in "abc"]
    assert [shlex.join(local.show(f"{first}/{index}")["plan"]["command"]) for index in range(3)] == words
    assert f"  command     {words[1]}\n" in local.serried("show", f"{first}/1").stdout
    assert f"  command     each task has its own: serried show {first}/0\n" in local.serried("show", first).stdout
    planned = json.loads(local.serried("rerun", f"{first}/2", "--dry-run", "--json").stdout)
    assert (shlex.join(planned["plan"]["command"]), len(planned["commands"])) == (words[2], 1)
    assert f"command      {words[2]}\n" in local.serried("rerun", f"{first}/2", "--dry-run").stderr

    last, _ = rerun(local, f"{first}/2")
    array = {"indices": [2], "parallel": None, "each": True, "repeat": None, "offsets": [], "draws": False}
    assert local.show(last)["plan"]["array"] == array
    path = f"{local.directory(first)}/tasks/2/checkpoints/epoch-1.ckpt"
    assert said(local, f"{last}/2") == f"old x y {path} c\n"

    refused = local.serried("rerun", first)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"error: run `{first}` is an array: 1 COMPLETED, 2 FAILED\n\n"
        "hint: `--failed` repeats the 2 tasks that did not complete, `--all` all 3\n"
    )
    paths = [path.replace("tasks/2", f"tasks/{task}") for task in (0, 2)]
    every = json.loads(local.serried("rerun", first, "--all", "--dry-run", "--json").stdout)
    assert every["plan"]["resume"] == {"checkpoints": [paths[0], "", paths[1]], "run": first}

    failed, _ = rerun(local, first, "--failed")
    shown = local.show(failed)
    assert (shown["state"], shown["tasks"], shown["rerun_of"]) == ("COMPLETED", {"COMPLETED": "0,2"}, first)
    assert said(local, f"{failed}/2") == f"old x y {path} c\n"
    nothing = local.serried("rerun", failed, "--failed", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)["runs"]) == (0, [])
    assert nothing.stderr == f"note: nothing to repeat: all 2 tasks of `{failed}` are COMPLETED\n"


def test_a_dry_run_of_it_touches_nothing(local):
    done = local.serried("run", "--ranks", "1", "--", sys.executable, "-c", "pass")
    assert done.returncode == 0
    before = len(json.loads(local.serried("ps", "--json").stdout)["runs"])
    done = local.serried("rerun", "last", "--dry-run")
    assert (done.returncode, "# the command (" in done.stdout) == (0, True)
    assert "ran in place, so the new run uses the code as it is now" in done.stderr
    assert len(json.loads(local.serried("ps", "--json").stdout)["runs"]) == before
