"""Placeholders in commands, and the parameters of a trial, as W&B passes them."""

from __future__ import annotations

import itertools
import json
import shlex

from serried.agent.ranks.command_placeholders import fill, fill_shell, fill_words
from serried.schema import placeholders
from tables import for_each

PARAMETERS = {"lr": 0.001, "flag": True, "off": False, "sizes": [1, 2], "name": "a b", "nothing": None}


def in_command(*command: str, is_shell: bool = False, is_template: bool = True, **parameters: object) -> list[str]:
    return placeholders.with_arguments(
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


def test_json_is_one_word():
    assert in_command("{args_json}", lr=0.5, flag=True) == ['{"lr": 0.5, "flag": true}']


def test_a_parameter_with_a_place_of_its_own_is_not_repeated():
    assert in_command("--rate={config.lr}", "{args}", lr=1, wd=2) == ["--rate={config.lr}", "--wd=2"]


def test_a_shell_reads_each_argument_as_one_word():
    assert in_command("python x.py {args} | tee log", is_shell=True, name="a b") == [
        "python x.py '--name=a b' | tee log"
    ]


@for_each(
    "value", ["{seed}", "data/{split}/x", "{seed?--x}", "{resume:--resume=}", "{{seed}}", "${task:-1}", "{args_json}"]
)
def test_placeholders_in_values_stay_text(value: str):
    assert fill_words(in_command("{args}", a=value), {"seed": "7", "resume": "", "task": "1"}) == [f"--a={value}"]
    assert fill_words(in_command("x={args_json}", a=value), {"seed": "7"}) == [f"x={json.dumps({'a': value})}"]
    assert in_command("{args}", "x={args}", a=value, is_template=False) == [f"--a={value}", f"x=--a={value}"]
    (line,) = in_command("run {args}", is_shell=True, a=value)
    assert shlex.split(fill_shell(line, {"seed": "7", "resume": "", "task": "1"})) == ["run", f"--a={value}"]


def test_a_part_of_a_word_gets_all_parameters_without_quotes():
    assert in_command("x={args_no_hyphens}", p="a b", q=1) == ["x=p=a b q=1"]


def test_a_literal_setting_is_no_place():
    assert in_command("{{config.lr}}", "{args}", lr=1) == ["{{config.lr}}", "--lr=1"]


def test_a_command_says_where_its_parameters_go():
    assert placeholders.takes_arguments(["a", "--json={args_json}"])
    assert not placeholders.takes_arguments(["a", "{config.lr}"])
    assert placeholders.placed(["{config.lr}", "{config.wd:--wd=}"], ["lr", "wd", "lr2"]) == ["lr", "wd"]


def test_what_is_escaped_is_filled_in_unchanged():
    pieces = ("{", "}", "$", "seed", ":--x=", "?y")
    for length in range(1, 7):
        for text in map("".join, itertools.product(pieces, repeat=length)):
            assert fill(placeholders.escaped(text), {"seed": "7"}) == text
