"""Simple lines of a shell script: words with their quotes removed, and the commands that run for certain.

The reader knows a small part of bash and knows where that part ends. It reads words, quotes, variables, lists and
pipelines. Compound commands, here-documents, functions and whatever else it does not know are `Unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Unreadable(Exception):  # noqa: N818 - not an error of the user's
    """From `line` on the text is not read, for the reason `why`."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


class Variable(NamedTuple):
    """`$NAME` or `${NAME}`."""

    name: str


class ShellWord(NamedTuple):
    pieces: tuple[str | Variable | None, ...]
    """Text without its quotes, variables, and None for any other expansion."""
    raw: str

    @property
    def literal(self) -> str | None:
        """The word as a program receives it, or None if that depends on an expansion."""
        texts = [piece for piece in self.pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(self.pieces) else None

    @property
    def assignment(self) -> tuple[str, ShellWord] | None:
        """The name and the value of `NAME=value`."""
        matched = re.match(r"([A-Za-z_]\w*)=", self.raw)
        first = self.pieces[0]
        if matched is None or not isinstance(first, str):
            return None
        rest = first[matched.end() :]
        return matched[1], ShellWord(((rest,) if rest else ()) + self.pieces[1:], self.raw[matched.end() :])


class Command(NamedTuple):
    words: tuple[ShellWord, ...]
    line: int
    """From 1, where the command begins."""
    last: int
    before: str
    """The operator in front: `;` at the beginning of a list, `&&`, `||` or `|` within one."""
    after: str
    """The operator that ends the command: `;`, `&`, `&&`, `||` or `|`."""
    is_redirected: bool


class _Token(NamedTuple):
    kind: str
    word: ShellWord
    line: int


_SUBSTITUTION = r"""\$\((?!\()(?:[^()'"`\\\n]|"[^"()`\\\n]*"|'[^'\n]*')*\)"""
_VARIABLE = r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)"
_EXPANSION = rf"""{_SUBSTITUTION}|\$\{{[^{{}}'"`\\\n]*\}}|\$[\d@*\#?$!-]"""
_PIECE = re.compile(
    rf"""
      (?P<glue>\\\n)
    | (?P<blank>[ \t]+)
    | (?P<end>\n|;(?!;))
    | (?P<list>&&|\|\||\|(?!&)|&(?!>))
    | (?P<redirection>\d*(?:>>|>&|<&|>\||<>|>|<(?!<|\())|&>>?)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:{_EXPANSION}|[^"\\$`]|\\.|\$(?![({{\d@*\#?$!-]))*)"
    | (?P<variable>{_VARIABLE})
    | (?P<expansion>{_EXPANSION})
    | \\(?P<escaped>.)
    | (?P<plain>[^\s'"\\$`;&|<>()]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(
    rf"(?P<variable>{_VARIABLE})|(?P<expansion>{_EXPANSION})|\\(?P<escaped>[$`\"\\\n])|(?P<single>[^$\\]+|[$\\])"
)
_EXPANDS = re.compile(r"[*?\[]|(?:^|[=:])~")
"""Patterns of files and home directories, where no quotes stand around them."""


def names(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


_RESERVED = names("if then elif else fi for while until do done case esac select function coproc { } ! [[")
_ENDS = names("exit return exec")


def commands(text: str) -> Iterator[Command]:
    """The commands of `text` in their order. Raises Unreadable at the first line that is not read."""
    words: list[ShellWord] = []
    begins, before, is_redirected, awaits_target = 0, ";", False, False
    line = 1
    for kind, word, line in _tokens(text):
        if kind == "word":
            begins = begins or line
            if not words and word.raw in _RESERVED:
                raise Unreadable(line, f"`{word.raw}` begins a compound command")
            words += [] if awaits_target else [word]
            awaits_target = False
        elif awaits_target:
            raise Unreadable(line, "a redirection names no file")
        elif kind == "redirection":
            is_redirected = awaits_target = True
            begins = begins or line
        elif begins:
            yield Command(tuple(words), begins, line, before, kind, is_redirected)
            words, begins, before, is_redirected = [], 0, ";" if kind == "&" else kind, False
        elif word.raw != "\n":
            raise Unreadable(line, f"a command is missing at `{word.raw}`")
    if awaits_target or (before != ";" and not begins):
        raise Unreadable(line, "the last command is not complete")
    if begins:
        yield Command(tuple(words), begins, line, before, ";", is_redirected)


def certain(text: str) -> tuple[tuple[ShellWord, ...], ...]:
    """The commands that `text` runs unless an earlier one fails. Empty if a part of `text` is not read."""
    found: list[tuple[ShellWord, ...]] = []
    is_certain = True
    try:
        every = tuple(commands(text))
    except Unreadable:
        return ()
    for command in every:
        program = command.words[0].literal if command.words else ""
        is_certain = (command.before == ";" or (is_certain and command.before != "||")) and program not in ("[", "test")
        if is_certain and program:
            found.append(command.words)
        if program in _ENDS:
            break
    return tuple(found)


def _tokens(text: str) -> Iterator[_Token]:
    """Words and operators, each with its line. Comments are left out."""
    position, line, start, first = 0, 1, -1, 1
    pieces: list[str | Variable | None] = []
    while position < len(text):
        if text[position] == "#" and start < 0:
            position = (text + "\n").find("\n", position)
            continue
        match = _PIECE.match(text, position)
        if match is None:
            raise Unreadable(line, _reason(text[position:]))
        kind = match.lastgroup or ""
        if kind in ("blank", "end", "list", "redirection"):
            if start >= 0:
                if match[0][0].isdigit():
                    raise Unreadable(line, "a number stands before a redirection")
                yield _Token("word", _word(pieces, text[start:position]), first)
            pieces, start = [], -1
            if kind != "blank":
                yield _Token(
                    ";" if kind == "end" else match[0] if kind == "list" else kind, ShellWord((), match[0]), line
                )
        elif kind != "glue":
            start, first = (position, line) if start < 0 else (start, first)
            pieces += _pieces(kind, match[kind])
        line += match[0].count("\n")
        position = match.end()
    if start >= 0:
        yield _Token("word", _word(pieces, text[start:]), first)


def _pieces(kind: str, text: str) -> Iterator[str | Variable | None]:
    if kind == "variable":
        yield Variable(text.strip("${}"))
    elif kind == "expansion" or (kind == "plain" and text != "[" and _EXPANDS.search(text)):
        yield None
    elif kind == "double":
        yield ""
        for inner in _QUOTED.finditer(text):
            yield from _pieces(inner.lastgroup or "", inner[inner.lastgroup or 0])
    else:
        yield "" if kind == "escaped" and text == "\n" else text


def _word(pieces: list[str | Variable | None], raw: str) -> ShellWord:
    may_be_braces = "{" in raw and re.search(r",|\.\.", raw) and re.sub(r"'[^']*'|\"[^\"]*\"", "", raw).count("{")
    return ShellWord((*_joined(pieces), *([None] if may_be_braces else [])), raw.replace("\\\n", ""))


def _joined(pieces: list[str | Variable | None]) -> Iterator[str | Variable | None]:
    """The pieces, with neighbouring texts as one."""
    text: str | None = None
    for piece in pieces:
        if isinstance(piece, str):
            text = (text or "") + piece
            continue
        if text:
            yield text
        text = None
        yield piece
    if text is not None:
        yield text


def _reason(rest: str) -> str:
    if rest.startswith("<<"):
        return "a here-document begins"
    if rest[0] in "()":
        return "parentheses begin or end a function, a list or a subshell"
    if rest[0] in "'\"":
        return "a quoted text is not closed, or contains commands"
    return f"`{rest[:2].strip() or ' '}` is not read"
