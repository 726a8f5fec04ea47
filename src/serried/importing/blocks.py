"""Conditions and loops that prepare what is started after them, taken as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serried.importing import steps
from serried.importing.bash import Statement
from serried.importing.environment import Environment
from serried.importing.expand import outside_text
from serried.importing.told import TAKEN, line


def take(made: Environment, block: Statement) -> bool:
    """Keep a block for what hangs on it, if it does no more than prepare that: in a command, or in `setup`."""
    names = steps.set_in(block)
    is_own = steps.only_sets(block) and not set(names) & set(made.exported)
    if not is_own and (not steps.only_prepares(block) or _is_tied(frozenset(names), made.steps)):
        return False
    for name in names:
        made.variables.values.pop(name, None)
    step = steps.of_block(block, made.bash(block.text))
    if is_own:
        made.steps.append(step)
    else:
        _into_setup(made, step)
    return True


def _is_tied(names: frozenset[str], past: Sequence[steps.Step]) -> bool:
    """Whether something else has what these were before: a command cannot have that, and ranks what they become."""
    return any((each.uses | each.names) & names and not each.names <= names for each in past)


def _into_setup(made: Environment, step: steps.Step) -> None:
    """What it sets has to reach the ranks, and `environment.env` would hide that. No command needs to set it again."""
    for each in (*steps.before(step, made.steps), step):
        if (text := outside_text(each.text)) not in made.setup:
            made.setup.append(text)
    made.steps[:] = [each for each in made.steps if not each.names & step.names]
    if step.names:
        made.setup.append(f"export {' '.join(sorted(step.names))}")
    moved = [made.exported[name][0] for name in step.names if made.env.pop(name, None) is not None]
    told = {(command.line, line(command.line, command.text, TAKEN, "").text) for command in moved}
    made.lines[:] = [
        replace(said, why="`environment.setup`") if (said.number, said.text) in told else said for said in made.lines
    ]
    made.lines.append(line(step.line, step.said, TAKEN, "`environment.setup`"))
