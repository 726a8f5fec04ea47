"""The commands of `beside`: from the file to the plan, and those that cannot run."""

from __future__ import annotations

import json

import pytest

from serried.base.errors import UsageError
from serried.schema.plan import Plan, SideCommand
from serried.submission.snapshot import Revision
from serried.views.plan_lines import plan_lines


@pytest.fixture
def beside(project, ask):
    """`beside(TOML)` is the plan of an experiment with that value of `beside`."""

    def plan(value: str, **options) -> Plan:
        (project / "train.py").touch()
        (project / "serried.toml").write_text(
            f'[experiments.train]\ncommand = "python train.py"\nbeside = {value}\n[experiments.train.config]\nlr = 1\n'
        )
        return ask(command=None, **options).plan

    return plan


def test_texts_are_lines_of_bash_and_lists_are_words(beside):
    plan = beside('["nvidia-smi dmon > {results}/gpu", {command = ["top", "-b"], on = "first"}]')

    assert plan.beside == (
        SideCommand(("nvidia-smi dmon > {results}/gpu",)),
        SideCommand(("top", "-b"), shell=False, on="first"),
    )
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).beside == plan.beside
    assert dict(plan_lines(plan, None, Revision()))["beside"] == (
        "0: nvidia-smi dmon > {results}/gpu; 1: top -b (on the first node)"
    )
    several = beside('"while sleep 1\\n  do true; done\\n"')
    assert dict(plan_lines(several, None, Revision()))["beside"] == "while sleep 1 do true; done"
    assert beside('"nvidia-smi dmon"').beside == (SideCommand(("nvidia-smi dmon",)),)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ('[{on = "first"}]', "`experiments.train.beside` has a table without `command`", "nvidia-smi dmon"),
        ('[{command = "a", on = "last"}]', "`experiments.train.beside` must be `every` or `first`, not `last`", ""),
        ('[{comand = "a"}]', "knows `command` and `on`, not `comand`", "did you mean `command`?"),
        ('[""]', "`experiments.train.beside` must not be empty", ""),
        ('["echo {local_rank}"]', "command 0 of `beside` uses `{local_rank}`, but it runs once on each node", "NODE"),
        ('["a", "echo {task}"]', "the command uses `{task}`", "--array"),
        ('["echo {config.wd}"]', "the command uses `{config.wd}`, but `config` has no such setting", "config.lr"),
        ('["if true"]', "command 0 of `beside` is not valid bash", ""),
    ],
)
def test_a_command_that_cannot_run_is_refused(beside, value, message, hint):
    with pytest.raises(UsageError) as caught:
        beside(value)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
