"""The parameters of a trial in its command, as W&B passes them."""

from __future__ import annotations

from serried.protocol import settings
from tables import for_each

PARAMETERS = {"lr": 0.001, "flag": True, "off": False, "sizes": [1, 2], "name": "a b", "nothing": None}


def in_command(*command: str, is_shell: bool = False, is_template: bool = True, **parameters: object) -> list[str]:
    return settings.with_arguments(
        command, parameters or PARAMETERS, "/run/p.json", is_shell=is_shell, is_template=is_template
    )


@for_each(
    ("word", "words"),
    [
        ("{args}", ["--lr=0.001", "--flag=True", "--off=False", "--sizes=[1, 2]", "--name=a b", "--nothing=None"]),
        ("{args_no_hyphens}", ["lr=0.001", "flag=True", "off=False", "sizes=[1, 2]", "name=a b", "nothing=None"]),
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


def test_placeholders_in_values_stay_text():
    assert in_command("{args}", a="{seed}") == ["--a={{seed}}"]
    assert in_command("{args}", a="{seed}", is_template=False) == ["--a={seed}"]


def test_a_command_says_where_its_parameters_go():
    assert settings.takes_arguments(["a", "--json={args_json}"])
    assert not settings.takes_arguments(["a", "{config.lr}"])
    assert settings.placed(["{config.lr}", "{config.wd:--wd=}"], ["lr", "wd", "lr2"]) == ["lr", "wd"]
