"""The page of the rules has what `serried rule` prints."""

from __future__ import annotations

import pytest

import rules_page
from house import ROOT


def test_the_page_has_what_the_command_prints():
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == rules_page.update(text), "run `make docs`"


def test_a_page_without_the_marker_is_refused():
    with pytest.raises(ValueError, match="the page has no line"):
        rules_page.update("mine")
