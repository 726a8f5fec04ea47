"""Functions as they are stored for the ranks."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from pathlib import Path

import pytest

import serried
from serried.errors import UsageError
from serried.submission.functions import Calls
from tables import for_each


def _without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def test_a_function_of_a_module_is_stored_by_its_name(monkeypatch, tmp_path):
    _without_cloudpickle(monkeypatch)
    payload = pickle.loads(Calls(json.dumps, [((1,), {"indent": 2})]).pickled(tmp_path))
    function = pickle.loads(payload["function"])
    arguments, keywords = pickle.loads(payload["calls"][0])
    assert (function, arguments, keywords) == (json.dumps, (1,), {"indent": 2})


def test_folders_of_the_project_on_the_path_are_those_of_the_copy(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), "/usr/lib", str(tmp_path / "gone")])
    assert pickle.loads(Calls(json.dumps, [((), {})]).pickled(tmp_path))["path"] == ["lib"]


def test_a_function_without_a_module_needs_cloudpickle(monkeypatch, tmp_path):
    _without_cloudpickle(monkeypatch)
    with pytest.raises(UsageError, match="is not in a module that ranks can import") as caught:
        Calls(lambda: 1, [((), {})]).pickled(tmp_path)
    assert caught.value.hint is not None
    assert "cloudpickle" not in sys.modules or sys.modules["cloudpickle"] is None


def test_cloudpickle_stores_any_function(tmp_path):
    pytest.importorskip("cloudpickle")
    factor = 3
    payload = pickle.loads(Calls(lambda x: x * factor, [((2,), {})]).pickled(tmp_path))
    assert pickle.loads(payload["function"])(2) == 6


def test_an_argument_that_cannot_be_pickled_is_named(tmp_path):
    with pytest.raises(UsageError, match="an argument of call 1 cannot be pickled"):
        Calls(json.dumps, [((1,), {}), ((threading.Lock(),), {})]).pickled(Path(tmp_path))


@for_each(
    ("request_", "message"),
    [
        (lambda: serried.map(json.dumps, []), "at least one value"),
        (lambda: serried.map(json.dumps, [1], [1, 2]), "shorter|longer"),
        (lambda: serried.map(json.dumps, [1], array="0-3"), "`array` does not apply"),
        (lambda: serried.submit(json.dumps, repeat=2), "`serried.map` calls a function several times"),
        (lambda: serried.submit("true", args=[1]), "those of a function"),
    ],
)
def test_a_request_without_a_meaning_is_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        request_()
