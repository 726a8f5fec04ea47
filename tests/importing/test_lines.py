"""Words and commands as bash reads them, and the point where the reader stops."""

from __future__ import annotations

import random
import subprocess

import pytest

from serried.importing.lines import Command, Unreadable, Variable, certain, commands
from tables import for_each

PIECES = [
    "a", "b c", "'x y'", '"x y"', '""', "''", "\\ ", "\\'", '\\"', '"\\$"', '"a\\"b"', "--x=1", "=", "{a,b}", "{", "}",
    "{run}", "#", "a#b", "*", "?", "[ab]", "~", "~/x", "a=~/x", "!", "%", "^", "@", "+", ",", "é", "\\\n", "\t",
    '"a\\\nb"', "1..3", "{1..3}", "'", '"', "\\", "$X", "${X}", '"$X"', "$", "$(echo 1 2)", '"$(echo 1  2)"',
    "`echo 1`", "$((1 + 1))", "${X:-y}", "$'a'", "(", ")", "<(a)", "\u00a0", "\r",
]  # fmt: skip


def words_by_bash(text: str) -> list[str]:
    script = f"show() {{ printf '%s\\0' \"$@\"; }}\nshow {text}"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=False, cwd="/", env={"HOME": "/h"})
    return done.stdout.decode().split("\0")[:-1]


def read(text: str) -> list[Command] | None:
    try:
        return list(commands(text))
    except Unreadable:
        return None


@for_each("seed", range(20))
def test_words_that_are_literal_are_those_of_bash(seed: int):
    draw = random.Random(seed)
    for _ in range(25):
        text = "x" + "".join(draw.choices([*PIECES, " ", " ", " "], k=draw.randrange(1, 8)))
        found = read(text)
        if not found or len(found) != 1 or found[0].is_redirected or found[0].before + found[0].after != ";;":
            continue
        literal = [word.literal for word in found[0].words]
        if None not in literal:
            assert literal == words_by_bash(text), text


def test_commands_have_their_lines_and_operators():
    text = "a 1 \\\n  2 # c\n\nb && c || d | e > f 2>&1; g &\n"
    found = [(" ".join(word.raw for word in each.words), each.line, each.last) for each in commands(text)]
    assert found == [("a 1 2", 1, 2), ("b", 4, 4), ("c", 4, 4), ("d", 4, 4), ("e", 4, 4), ("g", 4, 4)]
    assert [each.before + " " + each.after for each in commands(text)] == ["; ;", "; &&", "&& ||", "|| |", "| ;", "; &"]
    assert [each.is_redirected for each in commands(text)] == [False, False, False, False, True, False]


def test_variables_are_kept_and_other_expansions_are_none():
    [command] = commands("A=$B/c \"${D}e\" $(date) '$F' x$1")
    assert [word.pieces for word in command.words] == [
        ("A=", Variable("B"), "/c"),
        (Variable("D"), "e"),
        (None,),
        ("$F",),
        ("x", None),
    ]
    assignment = command.words[0].assignment
    assert assignment is not None
    assert (assignment[0], assignment[1].pieces) == ("A", (Variable("B"), "/c"))
    assert [word.assignment for word in command.words[1:]] == [None] * 4


@for_each(
    ("text", "line"),
    [
        ("a\nif b; then c; fi", 2),
        ("a\n\nf() { b; }", 3),
        ("cat <<END\nx\nEND", 1),
        ("a <<< b", 1),
        ("A=(1 2)", 1),
        ("(a)", 1),
        ("echo `a`", 1),
        ("a 'b\nc", 1),
        ('echo "$(a "b)c")"', 1),
        ("a $((1 + 1))", 1),
        ("a &&", 1),
        ("; a", 1),
        ("a ;; b", 1),
        ("a >\nb", 1),
        ("[[ -n $A ]]", 1),
        ("{ a; }", 1),
        ("! a", 1),
        ("a |& b", 1),
    ],
)
def test_what_is_not_read_is_named_with_its_line(text: str, line: int):
    with pytest.raises(Unreadable) as stop:
        list(commands(text))
    assert stop.value.line == line


@for_each(
    ("text", "programs"),
    [
        ("a; b && c | d", "abcd"),
        ("a || b; c", "ac"),
        ("a || b && c", "a"),
        ("[ x ] && a; b", "b"),
        ("test x || exit 1; b", ""),
        ("a; exec b; c", "a"),
        ("a\nif b; then c; fi", ""),
        ("a 'b", ""),
    ],
)
def test_only_commands_that_run_for_certain_count(text: str, programs: str):
    assert "".join(words[0].raw for words in certain(text) if len(words[0].raw) == 1) == programs
