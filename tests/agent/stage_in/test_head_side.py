"""What the head reports while data is staged: the progress of the node that all others wait for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent.stage_in import head_side
from serried.schema.plan import Data, Staged

GB = 10**9


@pytest.fixture
def staging(monkeypatch):
    """The head's end of three nodes that stage; `staging.noted` is what its journal gets."""
    monkeypatch.setattr(head_side, "RECORD_SECONDS", 0.0)
    monkeypatch.setattr(head_side, "LOG_SECONDS", 0.0)
    work = SimpleNamespace(nodes=3, plan=a_plan(data=Data((Staged("/set", "set"),))))
    noted: list[dict] = []
    staging = head_side.StageInCoordinator(work, [], lambda _, **facts: noted.append(facts), print, lambda: None)
    staging.noted = noted
    return staging


def far(node: int, size: int, rate: int) -> tuple[SimpleNamespace, dict]:
    message = {"event": "staging", "bytes": size, "of": 12 * GB, "files": 1, "of_files": 2, "rate": rate, "left": 1}
    message |= {"waits_for": None, "unpacks": False}
    return SimpleNamespace(index=node), message


def test_it_is_the_node_that_is_furthest_behind_and_has_not_all_yet(staging, capsys):
    staging.on_message(*far(0, 6 * GB, 10**8))
    staging.on_message(*far(1, 3 * GB, 5 * 10**7))
    staging.on_message(*far(2, 9 * GB, 0))
    staging.on_message(SimpleNamespace(index=1), {"event": "staged", "bytes": 12 * GB, "files": 2, "seconds": 1.0})
    staging.on_message(*far(2, 5 * GB, 0))
    assert [(one["bytes"], one["rate"], one["left"]) for one in staging.noted] == [
        (6 * GB, 10**8, 60),
        (3 * GB, 5 * 10**7, 180),
        (3 * GB, 5 * 10**7, 180),
        (5 * GB, 0, None),
    ]
    assert capsys.readouterr().err.splitlines() == [
        "serried: staging 50 % of 12.0 GB at 100.0 MB/s, 1m00s left",
        "serried: staging 25 % of 12.0 GB at 50.0 MB/s, 3m00s left",
        "serried: staging 25 % of 12.0 GB at 50.0 MB/s, 3m00s left",
        "serried: staging 41 % of 12.0 GB",
    ]
