"""job.sh's words."""

from __future__ import annotations

import pytest

from serried.agent import options
from tables import for_each


def test_job_shs_words_are_read():
    read = options.parse(["tok-1", "--job", "12", "--task", "3", "--hosts", "n[1-2]", "--end", ""])

    assert (read.token, read.job, read.task, read.hosts, read.end) == ("tok-1", "12", 3, "n[1-2]", 0.0)


@for_each("words", [["t", "--job"], ["t", "--nonsense", "1"], ["t", "--task", "x"]])
def test_words_that_job_sh_would_not_say_are_refused(words):
    with pytest.raises(ValueError, match=r"no value|no option|invalid literal"):
        options.parse(words)
