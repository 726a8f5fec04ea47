"""What somebody is told who mistypes the command line, or knows the words of another tool."""

from __future__ import annotations

import contextlib
import sys

import pytest

from serried import cli
from serried.cli import VERBS, click_errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sho", "last"], "unknown command: `sho`|did you mean `serried show`? Show a run's plan, timeline and files."),
        (["squeue"], "unknown command: `squeue`|did you mean `serried ps`? List runs, the running ones first."),
        (["cancel", "last"], "unknown command: `cancel`|did you mean `serried stop`? Stop runs."),
        (["xyzzy"], "unknown command: `xyzzy`|serried --help lists them"),
        (["submit", "--clustr", "x"], "unknown option: `--clustr`|did you mean `--cluster`?"),
        (["submit", "--mem-per-gpu", "8G"], "unknown option: `--mem-per-gpu`|did you mean `--mem`?"),
        (["submit", "--nproc_per_node=4"], "unknown option: `--nproc_per_node`|did you mean `--ranks`?"),
        (["completion"], "one of `bash`, `zsh` and `fish` is missing|serried completion --help"),
        (["ps", "--frobnicate"], "unknown option: `--frobnicate`|serried ps --help lists them"),
        (["show"], "missing argument `RUN`|serried show --help"),
        (["ps", "-n", "x"], "invalid value for `-n` / `--last`: `x` is not a valid integer|serried ps --help"),
    ],
)
def test_a_mistake_is_one_sentence_and_what_was_meant(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    message, hint = said.split("|")
    assert (end.value.code, *capsys.readouterr()) == (2, "", f"error: {message}\n\nhint: {hint}\n")


def _said(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", *words])
    with contextlib.suppress(SystemExit):
        cli.main()
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [[], ["submit"], ["lab"]])
def test_help_can_be_asked_for_by_a_word(words, monkeypatch, capsys):
    helped = _said(["help", *words], monkeypatch, capsys)
    assert helped == _said([*words, "--help"], monkeypatch, capsys)
    assert helped.startswith(" ".join(["Usage: serried", *words]))


def test_help_on_what_is_no_command_says_what_was_meant(monkeypatch, capsys):
    said = _said(["help", "sbatch"], monkeypatch, capsys)
    assert said.startswith("error: unknown command: `sbatch`\n\nhint: did you mean `serried submit`?")


def test_help_is_what_comes_where_nothing_was_asked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", "lab"])
    with pytest.raises(SystemExit):
        cli.main()
    said = "".join(capsys.readouterr())
    assert (said.startswith("Usage: serried lab"), "error" in said) == (True, False)


def test_other_words_lead_to_verbs_that_are_there_and_to_one_each():
    words = [word for others in click_errors.MEANT.values() for word in others.split()]
    assert set(click_errors.MEANT) <= set(VERBS)
    assert len(words) == len(set(words))
    assert set(words) & set(VERBS) == set()
