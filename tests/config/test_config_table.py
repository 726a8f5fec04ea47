"""The table `config`: what the training is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resolving import BARE, refusal, resolve
from serried import config
from serried.base.errors import UsageError
from serried.submission.plan import make_plan

TEXT = """
[defaults.config]
lr = 0.1
model = { width = 64, depth = 2 }
schedule = "cosine"
[experiments.digits]
command = "train"
[experiments.digits.config]
lr = 1e-3
model.depth = 3
schedule.name = "step"
flags = [1, 2.5, "x", true]
"a-é" = 1
[experiments.other]
command = "x"
config = { model = "small" }
[experiments.digits.on.local.config]
workers = 0
"""


def test_settings_are_merged_by_name_and_keep_their_types(folder: Path):
    found = resolve(folder, TEXT, name="digits", config__model__width=8, config__amp=True)
    assert found.experiment.config == {
        "lr": 0.001,
        "model.width": 8,
        "model.depth": 3,
        "schedule.name": "step",
        "flags": [1, 2.5, "x", True],
        "a-é": 1,
        "workers": 0,
        "amp": True,
    }
    places = {key.removeprefix("config."): str(at) for key, at in found.origins.items() if key.startswith("config.")}
    expected = ("serried.toml:9", "command line", "serried.toml:18")
    assert (places["lr"], places["model.width"], places["workers"]) == expected


def test_a_value_displaces_a_table_and_a_table_a_value(folder: Path):
    assert resolve(folder, TEXT, name="other").experiment.config == {"lr": 0.1, "model": "small", "schedule": "cosine"}


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("'a b' = 1", '`defaults.config."a b"` cannot be the name of a setting', None),
        (
            "'a.b' = 1",
            '`defaults.config."a.b"` cannot be the name of a setting',
            "without quotes: `defaults.config.a.b`",
        ),
        ("'{x}' = 1", '`defaults.config."{x}"` cannot be the name of a setting', None),
        (
            "day = 2026-11-21",
            "`defaults.config.day` must be text, a number, true, false or a list of them, not `2026-11-21`",
            'write it as text: "2026-11-21"',
        ),
        (
            "x = inf",
            "`defaults.config.x` must be text, a number, true, false or a list of them, not `inf`",
            'write it as text: "inf"',
        ),
        (
            "x = [{ y = 1 }]",
            "`defaults.config.x` must be text, a number, true, false or a list of them, not `{'y': 1}`",
            None,
        ),
        ('x = "a\\u0000"', "`defaults.config.x` must not contain a NUL character", None),
    ],
)
def test_what_no_setting_can_be_is_refused_with_its_line(folder: Path, line: str, message: str, hint: str | None):
    assert refusal(folder, f"[defaults.config]\n{line}", command=BARE) == (f"serried.toml:2: {message}", hint)


def test_the_table_itself_must_be_one(folder: Path):
    assert refusal(folder, "[defaults]\nconfig = 3", command=BARE) == (
        "serried.toml:2: `defaults.config` is a table of names and values",
        "write `[defaults.config]`",
    )


def test_more_than_a_variable_can_hold_is_refused(folder: Path):
    resolved = config.resolve(None, BARE, {"config.long": "x" * 100_000}, "local", folder, os.environ)
    with pytest.raises(UsageError, match=r"`config` is 100,012 bytes of JSON, and at most 100,000 fit a variable"):
        make_plan(resolved, run_id="k3f9q2", created="")


def test_the_plan_has_it_as_json_has(folder: Path):
    made = make_plan(resolve(folder, TEXT.replace('"a-é"', '"-rf"'), name="digits"), run_id="k3f9q2", created="")
    assert json.loads(json.dumps(made.to_json()))["config"] == made.config
    assert made.config["-rf"] == 1
