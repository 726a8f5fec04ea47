"""What the pages for people who come from elsewhere tell them to type is there to be typed."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from serried.cli import VERBS
from serried.contract import names

DOCS = Path(__file__).parents[2] / "docs"
PHRASES = (DOCS / "phrasebook.md").read_text(encoding="utf-8")


def said(page: str) -> list[str]:
    """Every command of Serried's that a page shows between backticks."""
    return sorted(set(re.findall(r"`(serried [^`]+)`", page)))


def parse(words: list[str]) -> None:
    """Reads a command line as the verb would, and runs nothing. Raises click's own errors."""
    verb, *rest = words
    assert verb in VERBS
    command: click.Command = importlib.import_module(f"serried.cli.{verb}").command
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    command.make_context(verb, rest)


@pytest.mark.parametrize("phrase", said(PHRASES))
def test_each_phrase_is_a_verb_with_flags_that_it_takes(phrase: str):
    parse(shlex.split(phrase)[1:])


def test_the_page_has_phrases_and_no_stale_placeholder():
    assert len(said(PHRASES)) > 35
    placeholders = set(re.findall(r"`\{(\w+)\}`", PHRASES))
    assert placeholders == {"rank", "local_rank", "world_size", "element", "run"}
    assert placeholders <= set(names.PLACEHOLDERS)
    assert set(re.findall(r"`\$(SERRIED_\w+)`", PHRASES)) == {names.ELEMENT, names.RUN_ID}


@pytest.mark.parametrize("key", sorted(set(re.findall(r"`((?:limit|environment|resources)\.\w+)", PHRASES))))
def test_each_setting_that_it_names_is_there(key: str):
    from serried.config import schema

    table, name = key.split(".")
    assert name in schema.COMMAND_LINE.tables[table].keys
