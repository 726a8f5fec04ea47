"""Conditions and loops that prepare what is started after them, taken as they stand."""

from __future__ import annotations

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
    if not is_own and not steps.only_prepares(block):
        return False
    for name in names:
        made.variables.values.pop(name, None)
    step = steps.of_block(block, made.bash(block.text))
    if is_own:
        made.steps.append(step)
    else:
        _into_setup(made, step)
    return True


def _into_setup(made: Environment, step: steps.Step) -> None:
    """What it sets has to reach the ranks, and `environment.env` would hide that."""
    for each in (*steps.before(step, made.steps), step):
        if (text := outside_text(each.text)) not in made.setup:
            made.setup.append(text)
    if step.names:
        made.setup.append(f"export {' '.join(sorted(step.names))}")
    moved = [made.exported[name][0] for name in step.names if made.env.pop(name, None) is not None]
    told = {(command.line, line(command.line, command.text, TAKEN, "").text) for command in moved}
    made.lines[:] = [
        replace(said, why="`environment.setup`") if (said.number, said.text) in told else said for said in made.lines
    ]
    made.lines.append(line(step.line, step.said, TAKEN, "`environment.setup`"))
