"""Commands as text: split into words as a POSIX shell would, expanding nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from serried.errors import UsageError

_PIECE = re.compile(
    r"""
      (?P<glue>\\\n)                          # a line continued: nothing at all
    | (?P<space>[\ \t\n]+)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.)
    | (?P<plain>[^\s'"\\]+|[^\S\ \t\n])
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{\w+\}|[A-Za-z_]\w*)")


def split(text: str) -> tuple[str, ...]:
    """The words of `text`. Raises ValueError for a quote that is never closed.

    Unlike `shlex.split`, joins lines that end in a backslash, and reads backslashes in double quotes as sh does.
    """
    words: list[str] = []
    word: str | None = None
    position = 0
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:
            raise ValueError(
                "ends in a lone backslash" if text[position] == "\\" else "has a quote that is never closed"
            )
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "space":
            words += [] if word is None else [word]
            word = None
        elif kind != "glue":
            word = (word or "") + _literal(kind, match[kind])
    return tuple(words) if word is None else (*words, word)


def _literal(kind: str, piece: str) -> str:
    return re.sub(r'\\([$`"\\])|\\\n', lambda match: match[1] or "", piece) if kind == "double" else piece


def lines(text: str) -> tuple[tuple[int, str], ...]:
    """The commands in a file of one command a line, each with its line number.

    Blank lines and lines that begin with `#` are skipped; a backslash at a line's end continues it.
    """
    found: list[tuple[int, str]] = []
    pending: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if not _continues(line):
            found.append((number - len(pending) + 1, "\n".join(pending)))
            pending = []
    return (*found, *([(number - len(pending) + 1, "\n".join(pending))] if pending else []))


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def variables(words: tuple[str, ...]) -> tuple[str, ...]:
    """What looks like a shell's variable in `words`, `$NAME` or `${NAME}`, each once; none where a shell reads it."""
    if words and _SHELL.fullmatch(words[0].rsplit("/", 1)[-1]):
        return ()
    return tuple(dict.fromkeys(name for word in words for name in _VARIABLE.findall(word)))


def operators(words: tuple[str, ...], among: frozenset[str]) -> tuple[str, ...]:
    """Which of `words` only a shell knows the meaning of, each once; none where one reads them."""
    if words and _SHELL.fullmatch(words[0].rsplit("/", 1)[-1]):
        return ()
    return tuple(dict.fromkeys(word for word in words if word in among))


CERTAIN = frozenset({"&&", "||", ">>", "2>&1", "&>"})
"""Words that hardly any program is given as an argument."""
OPERATORS = CERTAIN | {"|", ";", ">", "<", "&", "2>"}
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|bash|sh|Rscript|julia|node")


def experiment_name(words: tuple[str, ...], *, is_shell: bool = False) -> str:
    """What a command given without a name is called: its script, module or program."""
    if not words:
        return ""
    if text := words[0] if is_shell else _text_of(words):
        return _name_of_text(text)
    if len(words) > 2 and words[1] == "-m" and _INTERPRETER.fullmatch(_base(words[0])):
        return words[2]
    name = _base(script_of(words) or words[0])
    return name.rsplit(".", 1)[0] or name or "command"


_BETWEEN = re.compile(r"&&|\|\||[;|\n]")
_PREPARES = frozenset({"cd", "export", "source", ".", "module", "set", "echo", "mkdir", "ulimit", "unset", "test", "["})
_PASSES_ON = frozenset({"exec", "env", "time", "nohup", "command"})
_ASSIGNS = re.compile(r"[A-Za-z_]\w*=.*")


def _text_of(words: Sequence[str]) -> str | None:
    """What a shell is given to read, `bash -c TEXT`."""
    if len(words) > 2 and _SHELL.fullmatch(_base(words[0])) and re.fullmatch(r"-[a-z]*c", words[1]):
        return words[2]
    return None


def _name_of_text(text: str) -> str:
    """That of its first command which does more than prepare: `cd code && A=1 python train.py` is `train`."""
    commands = [_program(part.split()) for part in _BETWEEN.split(text)]
    chosen = next((each for each in commands if each and each[0] not in _PREPARES), None)
    return experiment_name(chosen) if chosen else "command"


def _program(words: list[str]) -> tuple[str, ...]:
    """Without assignments, and what only passes on."""
    while words and (_ASSIGNS.fullmatch(words[0]) or _base(words[0]) in _PASSES_ON):
        words = words[1:]
    return tuple(word.strip("\"'(){}") for word in words)


_OPTIONS = (
    (re.compile(r"(?:python|pypy)[\d.]*"), re.compile(r"-[a-zA-Z]*[cm]|-"), ("-W", "-X", "--check-hash-based-pycs")),
    (_SHELL, re.compile(r"-[a-zA-Z]*[cs]|-"), ("-o", "-O", "+o", "+O")),
    (re.compile(r".*"), re.compile(r"-[eEp]|--eval|-"), ()),
)
"""Of an interpreter: which options leave it without a script (`-c`, `-m`), and which have a value of their own."""


def script_of(words: Sequence[str]) -> str | None:
    """The script that an interpreter is given, `train.py` of `python -u train.py`; None where there is none."""
    if not words or not _INTERPRETER.fullmatch(_base(words[0])):
        return None
    name, rest = _base(words[0]), iter(words[1:])
    without, with_value = next((ends, valued) for kind, ends, valued in _OPTIONS if kind.fullmatch(name))
    for word in rest:
        if without.fullmatch(word):
            return None
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def given(command: str | Sequence[str]) -> Sequence[str]:
    """A command that a program gives: words taken verbatim, or a string that is split. Raises UsageError."""
    if not isinstance(command, str):
        return [os.fspath(word) for word in command]
    try:
        return split(command)
    except ValueError as error:
        raise UsageError(f"the command {error}", hint="a list of words needs no quotes") from None
