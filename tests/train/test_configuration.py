"""The settings of a training: where they come from, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

import serried.train as st
from serried.train.errors import SettingError
from tables import for_each


@dataclass
class Model:
    width: int = 24
    norm: str = "group"


@dataclass
class Config:
    lr: float = 1e-3
    epochs: int = 3
    verbose: bool = False
    name: str = "digits"
    data: Path = Path("/data")
    stop_at: int | None = None
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    model: Model = field(default_factory=Model)


@for_each(
    "argv, expected",
    [
        ([], Config()),
        (["--lr", "0.5", "--epochs=7"], Config(lr=0.5, epochs=7)),
        (["--lr", "1"], Config(lr=1.0)),
        (["--verbose"], Config(verbose=True)),
        (["--verbose", "--no-verbose"], Config()),
        (["--verbose=no"], Config()),
        (["--verbose", "true", "--lr", "1"], Config(verbose=True, lr=1.0)),
        (["--verbose", "false", "--no-verbose"], Config()),
        (["--model.width", "8", "model.norm=batch"], Config(model=Model(8, "batch"))),
        (["--stop-at", "9"], Config(stop_at=9)),
        (["--stop_at=9", "--stop_at=none"], Config()),
        (["--sizes", "4,5,6"], Config(sizes=[4, 5, 6])),
        (["--sizes=[7]"], Config(sizes=[7])),
        (["--data", "~/x y"], Config(data=Path("~/x y"))),
        (["--name=", "--name", "-rf $(id)"], Config(name="-rf $(id)")),
    ],
)
def test_the_command_line_sets_and_keeps_types(argv, expected):
    made = st.config(Config, argv=argv)
    assert made == expected
    assert type(made.lr) is float


def test_the_command_line_wins_over_what_serried_hands_on(monkeypatch):
    monkeypatch.setenv("SERRIED_CONFIG", json.dumps({"lr": 1, "epochs": 5, "model": {"width": 9}, "model.norm": "x"}))
    assert st.config(Config(name="own"), argv=["--epochs", "6"]) == Config(
        lr=1.0, epochs=6, name="own", model=Model(9, "x")
    )


def test_a_dict_gives_a_dict_and_is_left_as_it_was():
    defaults = {"lr": 0.1, "model": {"width": 1}, "tags": ["a"], "none": None}
    assert st.config(defaults, argv=["--model.width=3", "--tags", "b,c", "--none", "[1]"]) == {
        "lr": 0.1, "model": {"width": 3}, "tags": ["b", "c"], "none": [1]
    }  # fmt: skip
    assert defaults["model"] == {"width": 1}


@for_each(
    "argv, message",
    [
        (
            ["--model.widht", "3"],
            "the command line sets the unknown setting `model.widht`\nhint: did you mean `model.width`?",
        ),
        (["--epochs", "many"], "the command line sets `epochs` to `many`, which is not a `int`"),
        (["--epochs", "1.5"], "the command line sets `epochs` to `1.5`, which is not a `int`"),
        (["--verbose=perhaps"], "the command line sets `verbose` to `perhaps`, which is not a `bool`"),
        (["--epochs"], "`--epochs` needs a value\nhint: write `--epochs VALUE`, or `--epochs=` for an empty one"),
        (["--", "train"], "`--` is not a setting\nhint: write `--name value`; `--help` lists them"),
        (["--stop-at", "soon"], "the command line sets `stop_at` to `soon`, which is not a `int | None`"),
        (["--sizes", "a"], "the command line sets `sizes` to `a`, which is not a `list[int]`"),
        (["train"], "`train` is not a setting\nhint: write `--name value`; `--help` lists them"),
    ],
)
def test_what_cannot_be_is_refused(argv, message):
    with pytest.raises(SettingError) as raised:
        st.config(Config, argv=argv)
    assert str(raised.value) == message


def test_a_value_of_the_runs_config_of_the_wrong_type_is_refused_with_what_to_write(monkeypatch):
    for table, message in (
        ('{"epochs": 2.5}', "`epochs` to `2.5`, which is not a `int`"),
        (
            '{"name": 2024}',
            "`name` to `2024`, which is not a `str`\nhint: write it as text: `--set config.name='\"2024\"'`",
        ),
    ):
        monkeypatch.setenv("SERRIED_CONFIG", table)
        with pytest.raises(SettingError) as raised:
            st.config(Config, argv=[])
        assert str(raised.value) == f"the run's `config` sets {message}"


class Norm(Enum):
    BATCH = "batch"
    GROUP = "group"


@dataclass
class Choices:
    norm: Norm = Norm.BATCH
    bits: Literal["16", "32", 8] = "32"
    betas: tuple[float, float] = (0.9, 0.999)
    pair: tuple[str, int] = ("a", 1)
    many: tuple[int, ...] = ()
    size: int | str = 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("norm", "group", Choices(norm=Norm.GROUP)),
        ("norm", "GROUP", Choices(norm=Norm.GROUP)),
        ("bits", "16", Choices(bits="16")),
        ("bits", 8, Choices(bits=8)),
        ("betas", [0, 1], Choices(betas=(0.0, 1.0))),
        ("pair", ["b", 2], Choices(pair=("b", 2))),
        ("pair", "b,2", Choices(pair=("b", 2))),
        ("many", "1,2,3", Choices(many=(1, 2, 3))),
        ("size", 5, Choices(size=5)),
        ("size", "5", Choices(size=5)),
        ("size", "small", Choices(size="small")),
    ],
)
def test_choices_pairs_and_alternatives_keep_their_types_too(name, value, expected, monkeypatch):
    monkeypatch.setenv("SERRIED_CONFIG", json.dumps({name: value}))
    assert st.config(Choices, argv=[]) == expected


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("norm", "grup", "`batch | group`"),
        ("bits", "64", "`16 | 32 | 8`"),
        ("bits", 16, "`16 | 32 | 8`"),
        ("betas", [0.9], "`tuple[float, float]`"),
        ("size", 1.5, "`int | str`"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(name, value, wanted, monkeypatch):
    monkeypatch.setenv("SERRIED_CONFIG", json.dumps({name: value}))
    with pytest.raises(SettingError) as raised:
        st.config(Choices, argv=[])
    assert raised.value.message == f"the run's `config` sets `{name}` to `{value}`, which is not a {wanted}"


def test_names_with_dashes_are_found_and_help_lists_every_setting(capsys):
    assert st.config({"weight-decay": 0.1}, argv=["--weight-decay", "0.2"]) == {"weight-decay": 0.2}
    with pytest.raises(SystemExit) as ended:
        st.config(Model, argv=["--help"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "  --width  24\n  --norm   group\n")


def test_the_fingerprint_is_of_the_settings_and_not_of_this_machine():
    mine = st.fingerprint(Config(data=Path("/home/ada/data"), name="/scratch/x"))
    assert mine == st.fingerprint(Config(data=Path("/other"), name="/y"))
    assert mine != st.fingerprint(Config(lr=0.5, name="/y"))
    assert st.fingerprint({"a": 1, "b": 2}) == st.fingerprint({"b": 2, "a": 1})


def test_rank_0_keeps_the_settings_among_the_results_as_json(tmp_path, monkeypatch):
    monkeypatch.setenv("SERRIED_RESULTS_DIR", str(tmp_path / "results"))
    made = st.config(Model, argv=["--width=7"])
    file = tmp_path / "results" / "config.json"
    expected = {"config": {"width": 7, "norm": "group"}, "fingerprint": st.fingerprint(made)}
    assert json.loads(file.read_text()) == expected
    st.config({"lr": 0.1, "most": 1.0}, argv=["--lr=nan", "--most=inf"])
    assert json.loads(file.read_text())["config"] == {"lr": "NaN", "most": "Infinity"}
    file.unlink()
    rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in rank_1.items():
        monkeypatch.setenv(name, value)
    st.config(Model, argv=[])
    assert not file.exists()
