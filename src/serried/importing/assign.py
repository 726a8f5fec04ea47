"""Variables that a script sets: filled in where they are used, exported to the ranks, or none of anybody's business."""

from __future__ import annotations

import re

from serried.importing import conditionals, tables
from serried.importing.assignments import of_command, used
from serried.importing.bash import ASSIGNED, Command, words_of
from serried.importing.environment import ScriptEnvironment, env_file
from serried.importing.expand import Word, as_shell, outside, static
from serried.importing.report import LEFT, NEEDLESS, TAKEN, is_secret, line

_OF_A_COMMAND = re.compile(
    r"-.*|.*\.(py|sh)|(.*/)?(python[\d.]*|bash|srun|torchrun|accelerate|deepspeed|mpirun|mpiexec|horovodrun|singularity|apptainer)"
)
"""What the first word of a part of a command looks like."""
_OF_A_FILE = re.compile(
    r"(?:\$\(|`)\s*(?:(?:cat|grep|egrep|sed)\b[^|;]*?\s)?<?\s*([\w./${}~-]+)\s*\|.*xargs.*[)`]", re.DOTALL
)
"""`$(grep -v '^#' .env | xargs)`, which `export` is given."""


def assign(made: ScriptEnvironment, command: Command, *, is_export: bool) -> None:
    """`A=b`, `export A=b`, `export A`, and arrays."""
    made.steps += of_command(command, made.bash)
    for word in command.words:
        if is_export and (file := _OF_A_FILE.fullmatch(word)):
            env_file(made, command, file[1])
        match = ASSIGNED.fullmatch(word)
        if match is None:
            if is_export:
                _export_by_name(made, word, command)
            continue
        name, plus, raw = match.groups()
        stands = bool(plus) and made.is_standing(name)
        made.settle(name)
        if raw.startswith("(") and raw.endswith(")"):
            values = [each for part in words_of(raw[1:-1]) for each in made.variables.expand(part)]
            made.variables.arrays.add(name)
        else:
            values = [made.variables.one(raw)]
        made.variables.set(name, [*made.variables.values.get(name, ()), *values] if plus else values)
        made.mentions(name)
        if stands:
            made.stands(name)
        if not re.search(rf"\$\{{?{name}\b", raw):  # else it has still what a block gave it
            made.hidden.pop(name, None)
        if is_export or name in made.exported:
            _export(made, name, values[0] if values else (), command, raw)
        else:
            if name in made.assigned and made.assigned[name][0] != command.line:
                made.lines.append(line(*made.assigned[name], NEEDLESS, f"line {command.line} sets it again"))
            made.assigned[name] = (command.line, command.text)


def _export_by_name(made: ScriptEnvironment, name: str, command: Command) -> None:
    value = made.variables.values.get(name, ())
    if name in made.assigned and value:
        _export(made, name, value[0], command, "")
    elif not made.is_standing(name):
        if name.isidentifier() and name != command.words[0]:
            made.exported.setdefault(name, (command, ""))  # for when it is set
    elif not conditionals.export(made, name, command):
        made.say(command, LEFT, f"`{name}` is set by a condition or a loop that other variables hang on too")


def _export(made: ScriptEnvironment, name: str, value: Word, command: Command, raw: str) -> None:
    value = outside(value)
    text = static(value)
    shell = " ".join(piece.text for piece in value if piece.is_shell)
    if name in tables.SAID_BY_SERRIED:
        made.say(command, NEEDLESS, "ranks get it from Serried")
    elif name == "OMP_NUM_THREADS" and "SLURM_CPUS" in raw:
        made.say(command, NEEDLESS, "it is each rank's share of the CPUs")
    elif name == "CUDA_VISIBLE_DEVICES":
        made.say(command, LEFT, "the scheduler says which GPUs a job has")
    elif is_secret(name):
        made.secrets.append(name)
        why = f"`environment.secrets` names it: have {name} in your environment, or in `env_file`, when you submit"
        made.lines.append(line(command.line, f"export {name}=…", LEFT, why))
    elif text is not None:
        made.env[name] = text
        made.exported[name] = (command, "")
        made.say(command, TAKEN, "`environment.env`")
    elif re.search(tables.OF_THE_JOB, shell):
        made.exported[name] = (command, "")
        made.say(command, NEEDLESS, "ranks find each other by Serried's variables")
    else:
        made.env.pop(name, None)  # which would hide it
        made.setup += conditionals.leading(as_shell(value), made, made.steps)
        made.setup.append(f"export {name}={as_shell(value)}")
        if name in used(shell):
            made.variables.values.pop(name, None)  # ranks have it, with what it was before
        made.exported[name] = (command, made.setup[-1])
        made.say(command, TAKEN, "`environment.setup`")
        for other in sorted(used(as_shell(value)) & set(made.hidden)):
            made.say(
                command, LEFT, f"`${other}` is set in line {made.hidden[other]}, in a block that is not taken over"
            )


def without_parts_of_commands(made: ScriptEnvironment) -> None:
    """`export ARGS="--lr 0.1 …"` that a command was put together from is nothing for the environment."""
    for name, (command, setup) in made.exported.items():
        words = "".join(piece.text for piece in made.variables.values.get(name, ((),))[0]).split()
        if name in made.variables.used and len(words) > 1 and _OF_A_COMMAND.fullmatch(words[0]):
            made.env.pop(name, None)
            made.setup[:] = [each for each in made.setup if each != setup]
            told = line(command.line, command.text, NEEDLESS, "filled in where it is used")
            made.lines[:] = [
                told if (each.number, each.text) == (told.number, told.text) else each for each in made.lines
            ]
