"""What the head does with the messages of the role `search`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from serried.agent.trials import search
from serried.agent.trials.search import TrialSearch
from serried.schema.layout import RunDirectory
from serried.schema.plan import Search

DRAWN = {"event": search.DRAWN, "trial": 0, "parameters": {"lr": 0.1}}
PRUNE = {"event": search.PRUNE, "values": 3}


@pytest.mark.parametrize(
    ("pruner", "messages", "is_warned"),
    [({"type": "median"}, [DRAWN], True), ({"type": "median"}, [DRAWN, PRUNE], False), (None, [DRAWN], False)],
)
def test_a_search_that_dies_while_it_watches_a_trial_gets_a_warning(tmp_path, capfd, pruner, messages, is_warned):
    work = SimpleNamespace(
        search=Search("bayes", "acc", "", "maximize", pruner, {}),
        resume_from=None,
        directory=RunDirectory(tmp_path),
        file_mode=0o600,
        write_parameters=lambda: None,
    )
    pruned = []
    trial = TrialSearch(None, work, pruned.append, pytest.fail)
    for message in [*messages, None]:
        trial._receive("python3", message)
    assert work.parameters == {"lr": 0.1}
    assert pruned == [3] * (PRUNE in messages)
    assert ("cannot end this trial early" in capfd.readouterr().err) is is_warned
