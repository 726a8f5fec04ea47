"""HPC_helper's micro-benchmark of layer norm, profiled as its README says, with fewer points."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from place import Place, environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "layernorm"

pytestmark = pytest.mark.torch


def test_steps_7_to_12_have_ten_norms_each(tmp_path: Path, torch_python: tuple[str, ...]) -> None:
    project = shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__*"))
    place = Place("local", project, {**environment(tmp_path, {}), "OMP_NUM_THREADS": "1"})
    for norm, operator in (("layer", "aten::native_layer_norm"), ("batch", "aten::native_batch_norm"), ("none", "")):
        words = (*torch_python, "train.py", "--norm", norm, "--rows", "64")
        done = place.serried("profile", "--steps", "6:12", "--json", "--", *words)
        assert done.returncode == 0, done.stderr
        (rank,) = json.loads(done.stdout)["ranks"]
        calls = {row["name"]: row["calls"] for row in rank["operators"]}
        assert (rank["steps"], calls["aten::addmm"], calls.get(operator, 0)) == ([6, 12], 6 * 12, 60 if operator else 0)
