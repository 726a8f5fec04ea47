"""The options of sbatch, srun and salloc, as they are written in directives and on command lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LONG = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude", "T": "threads", "B": "extra-node-info",
    "P": "dependency", "E": "preserve-env", "H": "hold", "h": "help", "I": "immediate", "k": "no-kill",
    "K": "kill-on-bad-exit", "l": "label", "O": "overcommit", "Q": "quiet", "s": "oversubscribe", "u": "unbuffered",
    "V": "version", "v": "verbose", "W": "wait", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip
_SHORT_WITH_VALUE = frozenset("AabCcDdeFGiJLMmNnopqStwxTBP")
_FLAGS = frozenset(
    [
        "bell", "contiguous", "disable-status", "exact", "exclusive", "get-user-env", "help", "hold", "ignore-pbs",
        "immediate", "kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate", "no-bell", "no-kill",
        "no-requeue", "overcommit", "overlap", "oversubscribe", "parsable", "preserve-env", "propagate", "pty", "quiet",
        "quit-on-interrupt", "reboot", "requeue", "resv-ports", "share", "spread-job", "test-only", "unbuffered",
        "use-min-nodes", "verbose", "version", "wait", "whole", "x11",
    ]
)  # fmt: skip
"""They stand alone, or carry their value behind `=`."""
_SAME = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cpus-per-gpus": "cpus-per-gpu"}


@dataclass(frozen=True)
class Option:
    name: str
    """The long one."""
    value: str
    """Empty for a flag."""
    text: str


def options(words: Sequence[str], *, is_srun: bool = False) -> Iterator[Option | Sequence[str]]:
    """The options that `words` begin with, then, if there are, the words that are left.

    `is_srun`: `-W` takes a value there.
    """
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--" or not word.startswith("-") or word == "-":
            yield words[position + (word == "--") :]
            return
        name, equals, value = word[2:].partition("=") if word.startswith("--") else _short(word, is_srun=is_srun)
        name = _SAME.get(name, name)
        takes = not equals and (name not in _FLAGS or (name == "wait" and is_srun))
        if takes and position + 1 < len(words):
            position += 1
            value = words[position]
            word = f"{word} {value}"
        yield Option(name, value, word)
        position += 1


def _short(word: str, *, is_srun: bool) -> tuple[str, str, str]:
    """The long name of `-N2` or `-N`, whether a value is with it, and that."""
    letter = word[1]
    name = _LONG.get(letter, word.lstrip("-"))
    if letter in _SHORT_WITH_VALUE or (letter == "W" and is_srun):
        return name, "=" if word[2:] else "", word[2:].removeprefix("=")
    return name, "=", word[2:]


def directive(text: str) -> list[str]:
    """The words of an `#SBATCH` line: a backslash hides the next character everywhere, a bare `#` begins a comment."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            word = (word or "") + text[position]
            position += 1
        elif quote:
            quote, word = ("", word or "") if character == quote else (quote, (word or "") + character)
        elif character in "'\"":
            quote, word = character, word or ""
        elif character == "#":
            break
        elif character.isspace():
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + character
    return words if word is None else [*words, word]
