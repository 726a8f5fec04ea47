"""Conditions and loops that prepare what is started after them, taken as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serried.importing import assignments
from serried.importing.bash import Command, Statement
from serried.importing.environment import ScriptEnvironment
from serried.importing.expand import outside_text
from serried.importing.report import TAKEN, line

MOST = 1000
"""Steps among which what a block hangs on is looked for: nobody wrote a longer script."""


def take(made: ScriptEnvironment, block: Statement) -> bool:
    """Keep a block for what hangs on it, if it does no more than prepare that: in a command, or in `setup`."""
    if len(made.steps) > MOST:
        return False
    names = assignments.set_in(block)
    is_own = assignments.only_sets(block) and not set(names) & set(made.exported)
    if not is_own and (not assignments.only_prepares(block) or _is_tied(frozenset(names), made.steps)):
        return False
    for name in names:
        made.settle(name)
        made.variables.values.pop(name, None)
    step = assignments.of_block(block, made.bash(block.text))
    if is_own:
        made.steps.append(step)
        made.standing |= step.names
    else:
        _into_setup(made, step)
    return True


def export(made: ScriptEnvironment, name: str, command: Command) -> bool:
    """`export NAME` of what a block has set."""
    names = frozenset([name])
    if _is_tied(names, made.steps):
        return False
    _into_setup(made, assignments.Step(names, names, f"export {name}", command.line, command.text, False, False))
    return True


def leading(text: str, made: ScriptEnvironment, past: Sequence[assignments.Step]) -> list[str]:
    """The blocks that lines of `setup` hang on, where they are not there yet."""
    found = _missing(made, assignments.needed(text, past)) if assignments.used(text) & made.standing else []
    made.taken |= dict.fromkeys(found, "`environment.setup`")
    return [outside_text(each.text) for each in found]


def _missing(made: ScriptEnvironment, found: Sequence[assignments.Step]) -> list[assignments.Step]:
    """Those that `setup` does not have yet, as they stand or as an export."""
    setup = set(made.setup)
    there = {name for name, (_, text) in made.exported.items() if text in setup}
    return [each for each in found if not each.names <= there and outside_text(each.text) not in setup]


def _is_tied(names: frozenset[str], past: Sequence[assignments.Step]) -> bool:
    """Whether something else has what these were before: a command cannot have that, and ranks what they become."""
    return any((each.uses | each.names) & names and not each.names <= names for each in past)


def _into_setup(made: ScriptEnvironment, step: assignments.Step) -> None:
    """What it sets has to reach the ranks, and `environment.env` would hide that. No command needs to set it again."""
    found = [*_missing(made, assignments.before(step, made.steps)), step]
    made.setup += [outside_text(each.text) for each in found]
    made.taken |= dict.fromkeys(found, "`environment.setup`")
    made.steps[:] = [each for each in made.steps if not each.names & step.names]
    made.standing -= step.names
    if step.names and not step.text.startswith("export "):
        made.setup.append(f"export {' '.join(sorted(step.names))}")
    for name in step.names:
        made.exported.setdefault(name, (Command((), step.line, step.said), ""))
    moved = [made.exported[name][0] for name in step.names if made.env.pop(name, None) is not None]
    told = {(command.line, line(command.line, command.text, TAKEN, "").text) for command in moved}
    made.lines[:] = [
        replace(said, why="`environment.setup`") if (said.number, said.text) in told else said for said in made.lines
    ]
    made.lines.append(line(step.line, step.said, TAKEN, "`environment.setup`"))
