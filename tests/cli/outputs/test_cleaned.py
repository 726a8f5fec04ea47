"""`serried clean` keeps outputs that nobody fetched."""

from __future__ import annotations

import io
import os
from pathlib import Path

from serried.base.files import write_json
from serried.schema.layout import TaskDirectory
from serried.schema.outputs import FinalModels
from serried.views import console
from tables import for_each
from written import put

DAY = 86400


def test_clean_keeps_a_run_whose_outputs_were_not_fetched(serried, run, clock):
    named = serried("clean", "-y", "k3f9q2")
    clock.passed += 60 * DAY
    old = serried("clean", "-y", "--older-than", "30d")

    said = "outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml"
    fetch = "`serried fetch k3f9q2 --to DIR` copies them; with `--outputs` they are removed too"
    assert (named.code, named.err) == (2, f"error: run `k3f9q2` stays: {said}\n\nhint: {fetch}\n")
    assert (old.code, old.err) == (0, f"nothing to remove\nnote: k3f9q2 train stays: {said}\nnote: {fetch}\n")
    assert (run.where.source / "results/model.pt").read_text() == "weights"


def test_clean_removes_them_when_they_were_fetched_and_not_changed_since(serried, run, tmp_path):
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    put(run.where.source, {"log": "more came"}, 99)
    assert "outputs: 3 files, 23 B, of which 1 not fetched: log" in serried("clean", "-y", "k3f9q2").err
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0
    assert serried("clean", "-y", "k3f9q2").code == 0
    assert not run.where.path.exists()
    assert (tmp_path / "to/log").read_text() == "more came"


def test_clean_with_outputs_names_them_in_its_question(serried, run, monkeypatch):
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = serried("clean", "k3f9q2", "--outputs")
    assert done.code == 0
    assert "outputs: 3 files, 19 B, not fetched: results/model.pt, log, config.yaml" in done.out
    assert "3 outputs never fetched? [y/N]" in done.err
    assert not run.where.path.exists()


def test_a_file_that_comes_while_clean_asks_keeps_its_run(serried, run, tmp_path, monkeypatch):
    assert serried("fetch", "last", "--to", str(tmp_path / "to")).code == 0

    def write_meanwhile(_):
        put(run.where.source, {"late": "x"}, 99)
        return True

    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", write_meanwhile)
    done = serried("clean", "--older-than", "2100-01-01")
    assert (done.code, (run.where.source / "late").exists()) == (1, True)
    assert "warning: k3f9q2 train stays: it is needed by now\n" in done.err


def test_a_run_whose_outputs_cannot_be_looked_at_stays(serried, run, monkeypatch):
    """A folder that is closed; a plan that a later version has written."""
    assert serried("fetch", "last", "--to", "/dev/null/x").code == 2
    scan = os.scandir

    def refuse(folder):
        if Path(os.fsdecode(folder)).name == "results":
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    done = serried("clean", "-y", "k3f9q2")
    monkeypatch.setattr(os, "scandir", scan)
    assert (done.code, "; 1 folder cannot be read" in done.err, run.where.path.exists()) == (2, True, True)
    assert serried("ps", "--all").code == 0
    for path in (run.where.plan, run.record.directory.plan):
        write_json(path, {**run.plan.to_json(), "schema": 99})
    assert serried("clean", "-y", "k3f9q2").code == 2
    kept = serried("clean", "-y", "--older-than", "2100-01-01").err
    assert "note: k3f9q2 train stays: outputs: unknown, because the run's plan cannot be read\n" in kept
    assert run.where.path.exists()


def test_a_model_among_the_checkpoints_is_said_fetched_and_kept(serried, ended, tmp_path):
    """As the Trainer leaves it with `--output_dir {checkpoints}`: beside it are checkpoints to resume from."""
    run = ended("k3f9q2")
    put(run.where.checkpoints, {"model.safetensors": "weights", "epoch=9-step=80.ckpt": "old", ".hidden": "x"})
    put(run.where.checkpoints, {"checkpoint-500/model.safetensors": "old"})
    said = "outputs: 1 file, 7 B, not fetched: checkpoints/model.safetensors"

    waited = serried("wait", "k3f9q2")
    assert said in waited.err
    assert "serried fetch k3f9q2 --to DIR" in waited.err
    assert said in serried("clean", "-y", "--older-than", "1s").err
    assert f"error: run `k3f9q2` stays: {said}" in serried("clean", "-y", "k3f9q2").err

    assert serried("fetch", "k3f9q2", "--to", str(tmp_path / "to")).code == 0
    copied = [path.relative_to(tmp_path / "to") for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert copied == [Path("checkpoints/model.safetensors")]
    assert serried("clean", "-y", "k3f9q2").code == 0
    assert not run.where.path.exists()


def test_checkpoints_count_as_fetched_whichever_way_they_were(serried, ended, tmp_path):
    run = ended("k3f9q2")
    put(run.where.checkpoints, {"final.pt": "weights"})
    assert serried("fetch", "k3f9q2", "checkpoints", "--to", str(tmp_path / "to")).code == 0
    assert serried("clean", "-y", "k3f9q2").code == 0


def test_fetch_of_a_run_with_checkpoints_alone_names_the_command_for_these(serried, ended):
    ended("k3f9q2")
    done = serried("fetch", "k3f9q2", "--to", "to")
    assert done.err == (
        "error: run `k3f9q2` has neither results nor outputs\n\n"
        "hint: `serried fetch k3f9q2 checkpoints --to DIR` copies its checkpoints\n"
    )


@for_each(
    "name, is_model",
    [
        ("model.safetensors", True),
        ("pytorch_model.bin", True),
        ("last.ckpt", True),
        ("best-model-v2.pt", True),
        ("resnet50.pth", True),
        ("config.json", True),
        ("step-100.pt", False),
        ("epoch=9-step=80.ckpt", False),
        ("checkpoint_12.pth.tar", False),
        ("ckpt-3", False),
        ("000100.pt", False),
        ("model.pt.tmp", False),
        (".latest", False),
    ],
)
def test_files_of_a_step_are_no_final_models(name, is_model):
    models = FinalModels(TaskDirectory(Path("/nowhere")), "")
    assert models.is_output(name, "file", 1, 1) == is_model
