"""Functions as they are stored for the ranks."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import types
from pathlib import Path

import pytest

import serried
from serried.api import Calls, loaded
from serried.base.errors import RunFailed, UsageError
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
    monkeypatch.chdir(tmp_path / "lib")
    for first in (str(tmp_path / "lib"), ""):  # of an interactive Python, it is the current folder
        monkeypatch.setattr(sys, "path", [first, "/usr/lib", str(tmp_path / "gone")])
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
        (lambda: serried.map(json.dumps, [1], [1, 2]), "different lengths"),
        (lambda: serried.map(json.dumps, [1], array="0-3"), "`array` does not apply"),
        (lambda: serried.submit(json.dumps, repeat=2), "`serried.map` calls a function several times"),
        (lambda: serried.submit("true", args=[1]), "those of a function"),
    ],
)
def test_a_request_without_a_meaning_is_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        request_()


@pytest.fixture
def pickled_elsewhere(monkeypatch):
    """An exception of a module that is not here."""
    module = types.ModuleType("only_there")
    exec("class Refused(Exception): pass", module.__dict__)
    with monkeypatch.context() as there:
        there.setitem(sys.modules, "only_there", module)
        return pickle.dumps(module.Refused("no"))


def failure_of(content: bytes) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        loaded(content, "k3f9q2")
    return caught.value


def test_an_exception_that_cannot_be_loaded_here_fails_with_its_traceback(pickled_elsewhere):
    failure = failure_of(pickle.dumps({"error": pickled_elsewhere, "traceback": "only_there.Refused: no"}))
    assert str(failure) == "the function of run k3f9q2 raised an exception"
    assert failure.details == "only_there.Refused: no"


def test_a_value_that_cannot_be_loaded_here_fails_with_the_reason(pickled_elsewhere):
    failure = failure_of(pickle.dumps({"value": pickled_elsewhere}))
    assert "cannot be loaded here: No module named 'only_there'" in str(failure)
    assert "ModuleNotFoundError" in str(failure.details)
    assert "cannot be loaded here: pickle data was truncated" in str(failure_of(pickle.dumps({"value": b""})[:-3]))
