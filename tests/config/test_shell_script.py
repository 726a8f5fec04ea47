"""Words and commands as bash reads them."""

from __future__ import annotations

import random
import subprocess

from serried.config.shell_words import certain, commands, plain
from tables import for_each

PIECES = [
    "a", "b c", "'x y'", '"x y"', '""', "''", "\\ ", "\\'", '\\"', '"\\$"', '"a\\"b"', "--x=1", "=", "}", "{run}", "#",
    "a#b", "!", "%", "^", "@", "+", ",", "é", "\\\n", "\t", '"a\\\nb"', "1..3",
]  # fmt: skip


def words_by_bash(text: str) -> list[str]:
    script = f"show() {{ printf '%s\\0' \"$@\"; }}\nshow {text}"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=False, cwd="/", env={"HOME": "/h"})
    return done.stdout.decode().split("\0")[:-1]


@for_each("seed", range(10))
def test_words_are_those_of_bash(seed: int):
    draw = random.Random(seed)
    for _ in range(25):
        text = "x" + "".join(draw.choices([*PIECES, " ", " ", " "], k=draw.randrange(1, 8)))
        [command] = commands(text)
        assert list(map(plain, command.words)) == words_by_bash(text), text


def read(text: str) -> list[str]:
    """Each command with its operators, and the kinds of the blocks around it."""
    return [
        f"{'/'.join(f'{block.kind}{branch}' for block, branch in places(each))} {each.before!r} "
        f"{' '.join(each.words)} {each.after!r}"
        for each in commands(text)
        if not each.kind
    ]


def places(command):
    while command.around:
        yield command.around, command.branch
        command = command.around


def test_commands_have_their_operators_and_places():
    text = "a 1 \\\n  2 # it's\n\nb && c || d | e > f 2>&1; g &\n"
    expected = [r" '\n' a 1 2 '\n'", r" '\n' b '&&'", r" '&&' c '||'", r" '||' d '|'", r" '|' e ';'", r" ';' g '&'"]
    assert read(text) == expected
    a, *_, g = commands(text)
    assert (text[a.start : a.end], text[g.start : g.end]) == ("a 1 \\\n  2", "g")
    assert [text[at : at + 1] for at in a.places] == ["a", "1", "2"]


@for_each(
    ("text", "expected"),
    [
        ("if [ x ]; then a; elif b; then c; else d; fi", ["if0 [ x ]", "if1 a", "if2 b", "if3 c", "if4 d"]),
        ("for x in 1 2; do a; done; b", ["for1 a", " b"]),
        ("for ((i=0;i<3;i++)); do a; done", ["for1 a"]),
        ("while a; do (b; c); done", ["while0 a", "(0/while1 b", "(0/while1 c"]),
        ("case $x in a|b) c ;; (d) e;; esac; f", ["case1 c", "case2 e", " f"]),
        ("f() { a; }; function g { b; }\nf", ["{0 a", "{0 b", " f"]),
        ("a <<END | b\nit's (\nEND\nc", [" a", " b", " c"]),
        ("a <<'E' 'F\ng'\n$(\nE\nc", [" a 'F\ng'", " c"]),
        ("a <<< 'b' c", [" a c"]),
        ("[[ $a && ( $b < 1 ) ]] && c", [" [[ $a && ( $b < 1 ) ]]", " c"]),
        ('A=(1 2) b "$(c "d" \'e\')" `f g` $((1 + (2)))', [' A=(1 2) b "$(c "d" \'e\')" `f g` $((1 + (2)))']),
        ("! time a && 2>x b", [" a", " b"]),
        ("if (a) then b; fi", ["(0/if0 a", "if1 b"]),
        ("a 'b\nc", [" a 'b\nc"]),
        ("fi; done; ) } a", [" a"]),
    ],
)
def test_a_command_is_found_in_its_block(text: str, expected: list[str]):
    found = []
    for each in commands(text):
        where = "/".join(f"{block.kind}{branch}" for block, branch in places(each))
        found += [] if each.kind else [f"{where} {' '.join(each.words)}"]
    assert found == expected


def test_a_block_knows_where_it_ends_what_follows_it_and_its_name():
    text = "f() {\n  a\n}\nwhile b; do c; done > log &\nif x; then y; elif z; then w; fi"
    blocks = [each for each in commands(text) if each.kind]
    expected = [("{", "f", "\n", set()), ("while", "", "&", {0}), ("if", "", "\n", {0, 2})]
    assert [(each.kind, each.name, each.after, each.conditions) for each in blocks] == expected
    assert text[blocks[0].start : blocks[0].end] == "f() {\n  a\n}"
    assert text[blocks[1].start : blocks[1].end] == "while b; do c; done > log"


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
        ("(a; b)", ""),
    ],
)
def test_only_commands_that_run_for_certain_count(text: str, programs: str):
    assert "".join(words[0] for words in certain(text) if len(words[0]) == 1) == programs


HOSTILE = ["(", "$(", "if ", "'", "a=(", "\\\n", "`", "<<A\n", "[[ a\n", "((", "case x in ", "f() {", "{ ", "a && "]


@for_each("piece", HOSTILE)
def test_what_is_nested_without_end_is_read(piece: str):
    commands(piece * 4_000)
