"""A job script as bash would read it, as far as an import needs it: statements, and the words of each command.

Never raises: what bash would refuse, or what is nested in ways that are not read here, is one block to its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_OPERATOR = re.compile(r"&&|\|\||;;&|;&|;;|\|&|<<<|<<-?|&>>?|>>|>&|<&|<>|>\||[;&|()<>\n]")
_ARITHMETIC = re.compile(r"\(\((?:[^()\n]|\([^()\n]*\))*\)\)")
"""`((i++))`, and what stands behind `for` in C's way."""
_REDIRECTIONS = frozenset(["<<<", "<<", "<<-", "&>", "&>>", ">>", ">&", "<&", "<>", ">|", "<", ">"])
_KINDS = {"<<": "<<", "<<-": "<<", "<": "<", "<>": "<", ">": ">", ">>": ">", "&>": ">", "&>>": ">", ">|": ">"}
_ENDS = frozenset([";", "\n", "&", ";;", ";&", ";;&"])
_CLOSED_BY = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_BETWEEN = frozenset(["then", "do", "else", "elif", "!", "time"])
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
"""A word that sets a variable: its name, `+` where it adds, the value as it is written."""
_META = frozenset(" \t\r\n;&|<>()")


@dataclass(frozen=True)
class Command:
    """A program or builtin with its words, as they are written: quotes and all."""

    words: tuple[str, ...]
    line: int
    """From 1."""
    text: str
    is_piped: bool = False
    """It reads what the command before it writes."""
    redirections: frozenset[str] = frozenset()
    """`<`, `<<` for a document that stands in the script, and `>` for a file that it writes."""


@dataclass(frozen=True)
class Statement:
    first: int
    last: int
    text: str
    commands: tuple[Command, ...]
    """Of a block, all that stand within."""
    is_block: bool
    """A condition, a loop, a function, a group: what happens is not told by its commands alone."""
    in_background: bool


class _Token(NamedTuple):
    text: str
    start: int
    end: int
    is_operator: bool


def statements(text: str) -> tuple[Statement, ...]:
    """What stands in a script, in its order. Comments, directives among them, are nothing here."""
    return tuple(_Reader(text).read())


def words_of(text: str) -> list[str]:
    """The words between the parentheses of an array."""
    return [token.text for token in _tokens(text) if not token.is_operator]


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    awaited: list[tuple[str, bool]] = []  # here-documents: where each ends, and whether tabs may stand before that
    position = 0
    while position < len(text):
        character = text[position]
        if character in " \t\r":
            position += 1
        elif text.startswith("\\\n", position):
            position += 2
        elif character == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif match := _ARITHMETIC.match(text, position):
            position = match.end()
            found.append(_Token(match[0], match.start(), position, is_operator=False))
        elif match := _OPERATOR.match(text, position):
            position = match.end()
            found.append(_Token(match[0], match.start(), position, is_operator=True))
            if match[0] == "\n" and awaited:
                position = _after_documents(text, position, awaited)
                awaited = []
        else:
            end = _word_end(text, position)
            word = text[position:end]
            if found and found[-1].text in ("<<", "<<-") and found[-1].is_operator:
                awaited.append((re.sub(r"['\"\\]", "", word), found[-1].text == "<<-"))
            found.append(_Token(word.replace("\\\n", ""), position, end, is_operator=False))
            position = end
    return found


def _after_documents(text: str, position: int, awaited: list[tuple[str, bool]]) -> int:
    for ending, tabs in awaited:
        while position < len(text):
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            line = text[position:end]
            position = end + 1
            if (line.lstrip("\t") if tabs else line).rstrip("\r") == ending:
                break
    return min(position, len(text))


def _word_end(text: str, start: int) -> int:
    """Where the word that begins at `start` ends; what is in quotes or `$(…)` belongs to it."""
    closers: list[str] = []
    position = start
    while position < len(text):
        character, inside = text[position], closers[-1] if closers else ""
        if inside == "'":
            if character == "'":
                closers.pop()
        elif character == "\\":
            position += 1
        elif character == inside:
            closers.pop()
        elif opened := _opens(text, position, inside, is_array=not closers and character == "("):
            if opened == "array":
                if not _ASSIGNS.fullmatch(text, start, position):
                    break
                opened = ")"
            closers.append(opened)
            position += character == "$"
        elif not closers and character in _META:
            break
        position += 1
    return min(max(position, start + 1), len(text))


def _opens(text: str, position: int, inside: str, *, is_array: bool) -> str:
    """What closes that which opens at `position`; empty where nothing does."""
    character = text[position]
    if character == "$" and position + 1 < len(text) and text[position + 1] in "({":
        return ")" if text[position + 1] == "(" else "}"
    if character == "`":
        return "`"
    if inside in ('"', "`"):
        return ""
    if character in "'\"":
        return character
    if character == "(" and inside == ")":
        return ")"
    return "array" if is_array else ""


@dataclass
class _Reader:
    text: str
    open: list[str] = field(default_factory=list)
    """What the blocks that are open are closed by."""
    words: list[_Token] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    made: list[Statement] = field(default_factory=list)
    start: int | None = None
    end: int = 0
    is_block: bool = False
    at_command: bool = True
    awaits_body: bool = False
    """After the name of a function."""
    is_piped: bool = False
    redirections: set[str] = field(default_factory=set)
    skips: bool = False
    """The next word is where something is redirected to."""
    seen: tuple[int, int] = (0, 1)
    """A place and its line, from which lines are counted on."""

    def read(self) -> list[Statement]:
        for token in _tokens(self.text):
            if token.is_operator:
                self._operator(token)
            else:
                self._word(token)
        self._end_command()
        self._end_statement()
        return self.made

    def _word(self, token: _Token) -> None:
        self._reaches(token)
        if self.skips:
            self.skips = False
            if token.text.startswith("/dev/"):
                self.redirections.discard(">")
        elif not self.at_command:
            self.words.append(token)
        elif self.open and token.text == self.open[-1]:
            self.open.pop()
            self.at_command = False
        elif token.text in _CLOSED_BY:
            self.open.append(_CLOSED_BY[token.text])
            self.is_block, self.awaits_body = True, False
            self.at_command = token.text not in ("for", "select", "case")
            if not self.at_command:
                self.words.append(token)
        elif token.text == "function":
            self.is_block = self.awaits_body = self.skips = True  # its name
        elif token.text not in _BETWEEN:
            self.words.append(token)
            self.at_command = False

    def _operator(self, token: _Token) -> None:
        if token.text in _ENDS:
            self._end(token)
        elif token.text in _REDIRECTIONS:
            self._reaches(token)
            channel = ""
            if self.words and self.words[-1].text.isdecimal() and self.words[-1].end == token.start:
                channel = self.words.pop().text
            if channel in ("", "1", "0"):
                self.redirections.add(_KINDS.get(token.text, ""))
            self.skips = True
        elif token.text == "(":
            self._reaches(token)
            self.is_block = True
            if self.at_command and not self.awaits_body:
                self.open.append(")")
            else:  # `name()`
                self.words.clear()
                self.awaits_body = True
        elif token.text == ")":
            self._closing(token)
        else:
            self._reaches(token)
            self._end_command()
            self.is_piped = token.text in ("|", "|&")

    def _closing(self, token: _Token) -> None:
        self._reaches(token)
        if self.open and self.open[-1] == ")":
            self._end_command()
            self.open.pop()
            self.at_command = False
        else:  # of `name()`, or of a pattern within `case`
            self.words.clear()
            self.at_command = True

    def _end(self, token: _Token) -> None:
        self._end_command()
        if token.text == "\n" and self.awaits_body:
            return
        if not self.open:
            if token.text == "&":
                self._reaches(token)
            self._end_statement(in_background=token.text == "&")

    def _end_command(self) -> None:
        if self.words:
            first, last = self.words[0], self.words[-1]
            words = tuple(word.text for word in self.words)
            text = self.text[first.start : last.end]
            made = Command(words, self._line(first.start), text, self.is_piped, frozenset(self.redirections))
            self.commands.append(made)
        self.words, self.is_piped, self.redirections = [], False, set()
        self.at_command, self.skips = True, False

    def _end_statement(self, *, in_background: bool = False) -> None:
        if self.start is not None:
            first = self._line(self.start)
            text = self.text[self.start : self.end]
            made = Statement(first, first + text.count("\n"), text, tuple(self.commands), self.is_block, in_background)
            self.made.append(made)
        self.commands, self.start, self.is_block, self.awaits_body, self.open = [], None, False, False, []

    def _reaches(self, token: _Token) -> None:
        self.start = token.start if self.start is None else self.start
        self.end = token.end

    def _line(self, position: int) -> int:
        at, line = self.seen if self.seen[0] <= position else (0, 1)
        self.seen = (position, line + self.text.count("\n", at, position))
        return self.seen[1]
