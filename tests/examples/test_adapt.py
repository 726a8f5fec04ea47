"""The adapted scripts before and after, as ranks, and the diffs on their pages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADAPT = ROOT / "examples" / "adapt"
EPOCH = re.compile(r"epoch (\d): loss (\d\.\d+)")
SCRIPTS = {  # how each is started, before
    "plain": (1, ()),
    "helper": (2, ("--ddp",)),
    "boilerplate": (2, ("--cpu",)),
    "lightning": (2, ()),
}


def learned(output: str) -> bool:
    """Whether there were five epochs, and what was learned in them."""
    epochs = EPOCH.findall(output)
    assert [epoch for epoch, _ in epochs] == ["1", "2", "3", "4", "5"], output
    return float(epochs[-1][1]) < 0.7 * float(epochs[0][1])


@pytest.mark.torch
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_learns_before_and_after_and_only_after_goes_on_where_it_was_stopped(name: str, tmp_path: Path, train):
    if name == "lightning" and importlib.util.find_spec("lightning") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("`lightning` is not installed")
        pytest.skip("needs lightning: pip install lightning")
    # Others may run it where it lies just now: their byte code comes and goes.
    project = shutil.copytree(ADAPT / name, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    ranks, options = SCRIPTS[name]
    before = train(project / "before.py", *options, ranks=ranks)
    assert before.succeeded()
    assert learned(before.output)

    stop = tmp_path / "stop"
    stop.write_text("limit")
    stopped = train(project / "after.py", SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop)
    assert stopped.statuses == [85, 85], stopped.output
    after = train(project / "after.py", SERRIED_CHECKPOINT_DIR=tmp_path)
    assert after.succeeded()
    assert learned(after.output)
    assert EPOCH.findall(after.outputs[1]) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "batch"),
    [("plain", "--batch-size=512"), ("helper", "--batch_size=1024"), ("boilerplate", "--batch-size=512")],
)
def test_a_script_that_was_stopped_after_the_last_step_of_an_epoch_goes_on_too(
    name: str, batch: str, tmp_path: Path, train
):
    stop = tmp_path / "stop"
    stop.write_text("limit")
    script = ADAPT / name / "after.py"
    assert train(script, batch, SERRIED_CHECKPOINT_DIR=tmp_path, SERRIED_STOP_FILE=stop).statuses == [85, 85]
    continued = train(script, batch, SERRIED_CHECKPOINT_DIR=tmp_path)
    assert continued.succeeded()
    assert re.findall(r"epoch \d: loss (nan|\d)", continued.output) == ["nan", "0", "0", "0", "0"]


def test_the_pages_show_each_script_once_and_as_it_is():
    spec = importlib.util.spec_from_file_location("diffs", ADAPT / "diffs.py")
    diffs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diffs)
    pages = [path.read_text("utf-8") for path in (ROOT / "docs" / "start" / "adapt.md", ADAPT / "README.md")]
    assert sorted(re.findall(r"<!-- diff: (\w+) -->", "".join(pages))) == sorted(SCRIPTS)
    assert list(map(diffs.renewed, pages)) == pages, "make docs"
