"""What docs/library/train-checkpoints.md shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, load, save  # noqa: E402 - after the skip

from serried.train.checkpoints import sharded, store  # noqa: E402 - after the skip
from serried.train.checkpoints.checkpoints import Checkpoints  # noqa: E402 - after the skip

PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "library" / "train-checkpoints.md").read_text(encoding="utf-8")


def block(beginning):
    """The page's Python that begins so."""
    (found,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if each.startswith(beginning)]
    return found


def test_files_are_loaded_by_hand_the_newest_and_the_best(tmp_path, monkeypatch):
    model = torch.nn.Linear(3, 1)
    checkpoints = Checkpoints(Alone(tmp_path / "checkpoints"), every=None, best="max", model=model)
    weights = {}
    for step, accuracy in ((1, 0.7), (2, 0.9), (3, 0.8)):
        with torch.no_grad():
            model.weight.fill_(step)
        checkpoints.step()
        checkpoints.rate(accuracy)
        checkpoints.save(wait=True)
        weights[step] = model.weight.tolist()
    checkpoints.close()
    monkeypatch.chdir(tmp_path)
    fresh = {"model": torch.nn.Linear(3, 1)}
    exec(block("import json"), fresh)
    assert (fresh["newest"].name, fresh["best"].name) == ("step-3", "step-2")
    assert fresh["model"].weight.tolist() == weights[2]


@pytest.mark.skipif(torch.__version__ < "2.4", reason="sharded state needs torch 2.4")
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable|not initialized)")
def test_shards_are_loaded_by_hand_into_a_model_that_has_none(tmp_path, monkeypatch):
    place = tmp_path / "checkpoints" / "step-7"
    model = torch.nn.Linear(3, 1)
    shards = sharded.Shards(pinned=False)
    store.make_directory(place / store.SHARDED)
    shards.save({"model": sharded.state_of("model", {"model": model})}, place / store.SHARDED)
    assert not shards.is_busy(120)
    assert shards.finish() is None
    shards.close()
    (place / store.COMPLETE).write_text("{}")
    monkeypatch.chdir(tmp_path)
    fresh = {"model": torch.nn.Linear(3, 1)}
    exec(block("from pathlib"), fresh)
    assert fresh["model"].weight.tolist() == model.weight.tolist()


def test_the_moving_average_of_the_page_is_kept(tmp_path):
    names = {}
    exec(block("class Ema"), names)
    model = torch.nn.Linear(3, 1)
    ema = names["Ema"](model)
    with torch.no_grad():
        model.weight.add_(1)
    ema.update(model)
    save(tmp_path, ema=ema)
    again = names["Ema"](torch.nn.Linear(3, 1))
    load(tmp_path, ema=again)
    assert again.values["weight"].tolist() == ema.values["weight"].tolist()


def test_every_file_of_tests_that_the_page_for_developers_names_is_there():
    page = (PAGES / "dev" / "saving.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+\.py)`", page))
    assert len(named) > 5
    assert named <= {path.name for path in Path(__file__).parent.iterdir()}
