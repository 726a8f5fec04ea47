"""Placeholders that were mistyped."""

from __future__ import annotations

from serried.submission.plan import command_warnings
from tables import for_each


@for_each(
    ("word", "meant"),
    [
        ("--out={resutls}", "results"),
        ("{checkpoint}/a", "checkpoints"),
        ("{world-size}", None),
        ("{data}/{results}", None),
        ("{{resutls}}", None),
        ("{config.lr}", None),
        ("{}", None),
        ("awk '{print $1}'", None),
        ('{"lr": 0.1}', None),
        ("{epoch}", None),
    ],
)
def test_a_word_in_braces_that_is_nearly_a_placeholder_is_told(word, meant):
    assert [said.rpartition(": ")[2] for said in command_warnings(("python", "train.py", word, word))] == (
        [f"did you mean `{{{meant}}}`?"] if meant else []
    )
