"""Placeholders in commands, their values in lines for bash, and the parameters of a trial, as W&B passes them."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from serried.schema import command_lines
from serried.schema.command_lines import fill, fill_shell, fill_words
from tables import for_each

PARAMETERS = {"lr": 0.001, "flag": True, "off": False, "sizes": [1, 2], "name": "a b", "nothing": None}


def in_command(*command: str, is_shell: bool = False, is_template: bool = True, **parameters: object) -> list[str]:
    return command_lines.with_arguments(
        command, parameters or PARAMETERS, "/run/p.json", is_shell=is_shell, is_template=is_template
    )


@for_each(
    ("word", "words"),
    [
        ("{args}", ["--lr=0.001", "--flag=True", "--off=False", "--sizes=[1, 2]", "--name=a b", "--nothing=None"]),
        ("{args_no_hyphens}", ["lr=0.001", "flag=True", "off=False", "sizes=[1, 2]", "name=a b", "nothing=None"]),
        ("{args_hydra}", ["lr=0.001", "flag=true", "off=false", "sizes=[1,2]", "name='a b'", "nothing=null"]),
        ("{args_no_boolean_flags}", ["--lr=0.001", "--flag", "--sizes=[1, 2]", "--name=a b", "--nothing=None"]),
        ("--file={args_json_file}", ["--file=/run/p.json"]),
        ("plain", ["plain"]),
    ],
)
def test_a_word_stands_for_all_parameters(word: str, words: list[str]):
    assert in_command("train", word) == ["train", *words]


@for_each(
    ("command", "parameters", "expected"),
    [
        (["{args_json}"], {"lr": 0.5, "flag": True}, ['{"lr": 0.5, "flag": true}']),
        # A parameter with a place of its own is not repeated; a literal setting is no place.
        (["--rate={config.lr}", "{args}"], {"lr": 1, "wd": 2}, ["--rate={config.lr}", "--wd=2"]),
        (["{{config.lr}}", "{args}"], {"lr": 1}, ["{{config.lr}}", "--lr=1"]),
        # Not in the form for Hydra, which cannot read such a table.
        (["{args_json}"], {"sizes": {"a b": 1}}, ['{"sizes": {"a b": 1}}']),
        # A part of a word gets all parameters without quotes.
        (["x={args_no_hyphens}"], {"p": "a b", "q": 1}, ["x=p=a b q=1"]),
    ],
)
def test_parameters_go_to_their_places(command, parameters, expected):
    assert in_command(*command, **parameters) == expected


def test_a_shell_reads_each_argument_as_one_word():
    line = in_command("python x.py {args} | tee log", is_shell=True, name="a b")
    assert line == ["python x.py '--name=a b' | tee log"]


@for_each(
    "value", ["{seed}", "data/{split}/x", "{seed?--x}", "{resume:--resume=}", "{{seed}}", "${task:-1}", "{args_json}"]
)
def test_placeholders_in_values_stay_text(value: str):
    assert fill_words(in_command("{args}", a=value), {"seed": "7", "resume": "", "task": "1"}) == [f"--a={value}"]
    assert fill_words(in_command("x={args_json}", a=value), {"seed": "7"}) == [f"x={json.dumps({'a': value})}"]
    assert in_command("{args}", "x={args}", a=value, is_template=False) == [f"--a={value}", f"x=--a={value}"]
    (line,) = in_command("run {args}", is_shell=True, a=value)
    assert shlex.split(fill_shell(line, {"seed": "7", "resume": "", "task": "1"})) == ["run", f"--a={value}"]


def test_a_command_says_where_its_parameters_go():
    assert command_lines.takes_arguments(["a", "--json={args_json}"])
    assert not command_lines.takes_arguments(["a", "{config.lr}"])
    assert command_lines.placed(["{config.lr}", "{config.wd:--wd=}"], ["lr", "wd", "lr2"]) == ["lr", "wd"]


def test_what_is_escaped_is_filled_in_unchanged():
    pieces = ("{", "}", "$", "seed", ":--x=", "?y")
    for length in range(1, 7):
        for text in map("".join, itertools.product(pieces, repeat=length)):
            assert fill(command_lines.escaped(text), {"seed": "7"}) == text


HOSTILE = """a b'c"d$(id)`id`\\e\\\\ !f*#{rank}"""


@for_each(
    ("words", "first", "later"),
    [
        (["--ckpt={resume}"], ["--ckpt="], ["--ckpt=/c/1"]),
        (["{resume:--resume_from_checkpoint=}"], [], ["--resume_from_checkpoint=/c/1"]),
        (["{resume:ckpt_path=}"], [], ["ckpt_path=/c/1"]),
        (["{resume?--resume}", "{resume:}"], [], ["--resume", "/c/1"]),
        (["{resume?--init_from=resume}"], [], ["--init_from=resume"]),
        (["x{resume:-}y"], ["xy"], ["x-/c/1y"]),
        (["{resume}"], [""], ["/c/1"]),
        (["{{resume}}"], ["{resume}"], ["{resume}"]),
        (["{seed:--seed=}"], ["--seed=0"], ["--seed=0"]),
        (["{rank:03d} {rank:>5} ${resume:--x} {nothing:--y=}"],) * 3,
    ],
)
def test_an_option_without_a_value_goes(words, first, later):
    values = {"seed": "0", "rank": "3"}
    assert fill_words(words, {**values, "resume": ""}) == first
    assert fill_words(words, {**values, "resume": "/c/1"}) == later


def printed(line):
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    return done.stdout.decode()


PLACES = {
    "plain": "printf %s {resume}",
    "after a comment": "# don't\nprintf %s {resume}",
    "in double quotes": 'printf %s "{resume}"',
    "in single quotes": "printf %s '{resume}'",
    "after $'…'": ": $'it\\'s '; printf %s \"{resume}\"",
    "inside $'…'": "printf %s $'{resume}'",
    "in a substitution within quotes": "printf %s \"$(printf %s '{resume}')\"",
    "in an assignment in quotes": 'export "A={resume}"; printf %s "$A"',
    "after an escaped quote": "printf %s {resume}; : \\' \"\\\"\" '{rank}'",
    "in a here-document": "cat <<END | head -c -1\n{resume}\nEND\n: it is '{rank}'",
    "in a quoted here-document": "cat <<'END' | head -c -1\n{resume}\nEND",
    "after a here-document with a quote in it": "cat <<END >/dev/null\ndon't\nEND\nprintf %s {resume}",
}


@for_each("line", PLACES.values())
def test_a_value_arrives_in_bash_as_it_is_whatever_quotes_it_stands_in(line):
    assert printed(fill_shell(line, {"resume": HOSTILE, "rank": "3"})) == HOSTILE
    assert printed(fill_shell(line, {"resume": "", "rank": "3"})) == ""


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20))
def test_any_value_arrives_in_double_quotes(value):
    line = 'printf "%s|" "A={resume}" \'{resume}\' {resume:--r=} "{resume:--r=}"'
    expected = f"A={value}|{value}|--r={value}|--r={value}|" if value else "A=|||"
    assert printed(fill_shell(line, {"resume": value})) == expected


def test_an_option_without_a_value_goes_in_bash_too():
    line = 'set -- a {resume:--from=} "b"; echo $#'
    assert printed(fill_shell(line, {"resume": ""})) == "2\n"
    assert printed(fill_shell(line, {"resume": "c d"})) == "3\n"
