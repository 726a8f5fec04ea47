"""Conditions and loops of a script: what the import makes of them runs the program with the same words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from serried import importing
from serried.importing import LEFT
from tables import for_each

SHOWS = """\
program() { printf '<%s>' "$@"; echo; export -p; }
"""
"""In the place of a program: the words that it gets, and of its environment what tells."""

SCRIPTS = {
    "case": """\
case $SLURM_ARRAY_TASK_ID in
  0) LR=0.1 ;;
  1) LR=0.01; ARGS="--warmup 3" ;;
  *) LR=0.001 ;;
esac
OUT=runs/lr-$LR
program --lr $LR $ARGS --out $OUT
""",
    "if, over a value of before": """\
LR=0.1
NAME="a b"
if [ -n "$DEBUG" ]; then LR=0.5; NAME="$NAME debug"; fi
program $LR "$NAME"
""",
    "one that adds to another": """\
ARGS="--a 1"
[ -n "$DEBUG" ] && ARGS="$ARGS --debug"
ARGS="$ARGS --b 2"
if [[ $SLURM_ARRAY_TASK_ID -gt 0 ]]; then ARGS="$ARGS --i $SLURM_ARRAY_TASK_ID"; fi
program $ARGS --last
""",
    "a list in a loop": """\
ARGS=(--first "x y")
for name in a b; do
  ARGS+=(--name "$name")
done
[ -z "$DEBUG" ] || ARGS+=('--say' "it's $NOBODY\\$x")
program "${ARGS[@]}" ${#ARGS[@]}
""",
    "sums": """\
N=3
for ((i = 0; i < 2; i++)); do N=$((N * 2)); done
while ((N > 9)); do ((N -= 4)); done
program $N $i
""",
    "exports": """\
export SEEN_MODE=slow SEEN_LEVEL=1
WHERE=here
if [ -n "$DEBUG" ]; then
  export SEEN_MODE=fast
  WHERE="over there"
fi
program "$WHERE" --mode $SEEN_MODE
""",
    "an export that another condition changes": """\
export SEEN_A=1
[ -n "$DEBUG" ] && SEEN_A=2
program
""",
    "an export that a list has, once it is changed": """\
export SEEN_A="a  b" SEEN_B=$NOBODY/x
if [ -n "$DEBUG" ]; then export SEEN_A="$SEEN_A!"; fi
ARGS=(--say "it is $SEEN_A" "$SEEN_B")
for x in 1 2; do ARGS+=($x); done
program "${ARGS[@]}"
""",
    "an export that is set again without one": """\
export SEEN_A="$NOBODY x"
SEEN_A=2
program $SEEN_A
""",
    "an export that adds to itself": """\
export SEEN_A="$NOBODY x"
export SEEN_A="$SEEN_A y"
program "$SEEN_A"
""",
    "an export by name of what a block sets": """\
[ -n "$DEBUG" ] && SEEN_A=1
export SEEN_A
program --a=$SEEN_A
""",
    "a list that grows behind the block": """\
LIST=(a)
if [ -n "$DEBUG" ]; then LIST+=("b c"); fi
LIST+=(d)
program "${LIST[@]}"
""",
    "a name that others were made of, before it changes": """\
OUT=$ROOT/out
NAME=$OUT/${ROOT}_name
if [ -n "$DEBUG" ]; then ROOT=/debug; fi
program ${OUT}s "$NAME" $ROOT
""",
    "an export of what a block sets": """\
if [ -n "$DEBUG" ]; then ROOT=/debug; else ROOT=/full; fi
export SEEN_DATA=$ROOT/data
program
""",
    "set again": """\
if [ -n "$DEBUG" ]; then A=1; fi
A=2
program $A
""",
    "two programs": """\
if [ -n "$DEBUG" ]; then A=1; else A=2; fi
program first $A && program second $A
""",
    "braces that Serried would fill in": """\
if [ -n "$DEBUG" ]; then A='{seed}'; else A="{rank}"; fi
program $A {run}
""",
}


@for_each("environ", [{}, {"DEBUG": "1"}, {"DEBUG": "x y"}])
@for_each("task", ["0", "1"])
@for_each("name", SCRIPTS)
def test_a_block_is_taken_as_bash_reads_it(name: str, task: str, environ: Mapping[str, str]):
    script = f"#!/bin/bash\n{SCRIPTS[name]}"
    variables = {"PATH": "/usr/bin:/bin", **environ}
    there = bash(SHOWS + script, {**variables, "SLURM_ARRAY_TASK_ID": task})

    imported = importing.read(script.encode(), "job.sh")
    [experiment] = imported.experiments
    said = experiment.settings
    exported = "".join(f"export {key}='{value}'\n" for key, value in said.get("environment.env", {}).items())
    command = said["command"] if isinstance(said["command"], str) else " ".join(said["command"])
    filled = command.replace("{task}", task).replace("{{", "{").replace("}}", "}")
    here = bash(f"{SHOWS}set -e\n{said.get('environment.setup', '')}\nset +e\n{exported}{filled}", variables)

    assert here == there
    assert [line.why for line in imported.of(LEFT) if line.number] == []


def bash(text: str, environ: Mapping[str, str]) -> list[str]:
    done = subprocess.run(["/bin/bash", "-c", text], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if not re.match(r"declare -x (?!SEEN_\w+=)", line)]


LEFT_OUT = {
    "what it starts": 'if [ -n "$D" ]; then curl -O https://example.org/$D; A=1; fi',
    "a secret": 'if [ -n "$D" ]; then A=1; WANDB_API_KEY=abc; fi',
    "words behind the script's name": 'if [ "$1" = debug ]; then A=1; fi',
    "a node's own disk": 'if [ -d "$SLURM_TMPDIR" ]; then A=$SLURM_TMPDIR; fi',
    "a file that it reads": "while read -r line; do A=$line; done < settings.txt",
    "a pipe": "if true; then A=1 | cat; fi",
}


@for_each("block", LEFT_OUT.values())
def test_a_block_that_does_more_is_named_and_so_is_what_hangs_on_it(block: str):
    imported = importing.read(f"#!/bin/bash\n{block}\npython train.py $A\n".encode(), "job.sh")
    [experiment] = imported.experiments
    assert experiment.settings["command"] == "python train.py $A"
    assert "abc" not in importing.text(imported, "job.sh")
    said = {(line.number, line.why) for line in imported.of(LEFT)}
    assert 2 in {number for number, _ in said}
    assert (3, "`$A` is set in line 2, in a block that is not taken over") in said


def test_an_export_that_something_has_from_before_it_changes_is_named_and_left_as_it_was():
    script = b'#!/bin/bash\nexport D="a b"\nA="--d $D"\nif [ -n "$X" ]; then export D=2; fi\npython train.py "$A"\n'
    imported = importing.read(script, "job.sh")
    [experiment] = imported.experiments
    assert (experiment.settings["command"], experiment.settings["environment.env"]) == (
        "python train.py '--d a b'",
        {"D": "a b"},
    )
    assert [line.number for line in imported.of(LEFT) if line.number] == [4]
