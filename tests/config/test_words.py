from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.config import shell_words
from tables import for_each


@for_each(
    ("text", "expected"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("python train.py \\\n  --lr 0.1\n", ("python", "train.py", "--lr", "0.1")),
        ("a'b c'd", ("ab cd",)),
        ('"a \\"b\\" \\$c \\d"', ('a "b" $c \\d',)),
        ("a\\ b ''", ("a b", "")),
        ("x#y '#z'", ("x#y", "#z")),
        ("$(id) `id` $HOME *", ("$(id)", "`id`", "$HOME", "*")),
        ("a\u00a0b", ("a\u00a0b",)),
        ("", ()),
    ],
)
def test_a_command_is_split_as_a_shell_would_and_nothing_is_expanded(text: str, expected: tuple[str, ...]):
    assert shell_words.split(text) == expected


@for_each("text", ["it's", 'say "hello', "ends in \\"])
def test_an_open_quote_is_refused(text: str):
    with pytest.raises(ValueError, match=r"quote that is never closed|lone backslash"):
        shell_words.split(text)


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_quoted_words_come_back_as_they_were(given_words: list[str]):
    assert shell_words.split(shlex.join(given_words)) == tuple(given_words)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", " ", "\\\n", "'b c'", '"d\\"e"', '"\\$f"', "\\ ", "g\\\\", "''", '"h\\i"']), min_size=1
    )
)
def test_a_real_shell_agrees(pieces: list[str]):
    text = "x " + "".join(pieces)
    shell = subprocess.run(["sh", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    printed = tuple(shell.stdout.decode().split("\0")[:-1])
    assert shell_words.split(text) == printed


def test_a_file_of_commands_has_comments_blank_lines_and_continued_lines():
    text = "# a comment\n\npython a.py\r\n  # another\npython b.py \\\n  --lr 1\npython c.py # not a comment\n"
    assert shell_words.lines(text) == (
        (3, "python a.py"),
        (5, "python b.py \\\n  --lr 1"),
        (7, "python c.py # not a comment"),
    )


def test_variables_that_no_shell_will_fill_in_are_found():
    assert shell_words.variables(("--dir", "$SLURM_TMPDIR/x", "${HOME}", "5$", "$SLURM_TMPDIR")) == (
        "$SLURM_TMPDIR",
        "${HOME}",
    )


def test_variables_that_a_shell_in_the_command_fills_in_are_no_concern():
    assert shell_words.variables(("/bin/bash", "-c", "echo $HOME")) == ()


@for_each(
    ("command", "name"),
    [
        (("python", "train.py", "--lr", "1"), "train"),
        (("/usr/bin/python3.11", "-u", "src/train.py"), "train"),
        (("python", "-m", "package.train"), "package.train"),
        (("python", "-c", "print(1)"), "python"),
        (("./run.sh",), "run"),
        (("nvidia-smi",), "nvidia-smi"),
        (("python",), "python"),
        (("bash", "-lc", "cd x; ./run.sh --fast"), "run"),
        (("./my run.sh",), "my run"),
        (("python", "-O", "-s", "-W", "error", "train.py"), "train"),
        (("bash", "-eu", "-o", "pipefail", "run.sh"), "run"),
        (("Rscript", "fit.R", "1"), "fit"),
        (("Rscript", "-e", "1"), "Rscript"),
        (("torchrun", "--nproc-per-node=2", "src/train.py"), "train"),
    ],
)
def test_a_bare_command_is_called_after_its_script(command: tuple[str, ...], name: str):
    assert shell_words.experiment_name(command) == name


@for_each(
    ("text", "name"),
    [
        ("cd .. && echo 'hello world' >/dev/null; A=1 /usr/bin/env python3 train.py --lr 1", "train"),
        ("cd code && A=1 exec python3 -u train.py | tee log", "train"),
        ("source env.sh\nexport B=2\npython -m package.train", "package.train"),
        ("(cd x && ./run.sh)", "run"),
        ("echo $(date) >when", "echo"),
        ("echo hi; exit 3", "echo"),
        ("nvidia-smi", "nvidia-smi"),
    ],
)
def test_a_line_for_a_shell_is_called_after_what_it_starts(text: str, name: str):
    assert shell_words.experiment_name((text,), is_shell=True) == name
