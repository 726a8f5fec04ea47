"""The commands of a shell script, with the blocks around them. Nothing is expanded and nothing refused.

The reader knows words, quotes, expansions, operators, redirections, here-documents, comments and the keywords of
compound commands. A quote or a block that is not closed ends with the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from serried.config import shell_words


@dataclass(eq=False)
class Command:
    """A simple command, or a block: a compound command or a function."""

    start: int
    """Where it begins in the text."""
    end: int
    """Behind its last word, redirection, here-document or closing keyword."""
    before: str
    """The operator in front, a line break at the beginning."""
    around: Command | None
    """The block that contains it."""
    branch: int
    """The part of that block, counted by `then`, `do`, `else` and patterns of `case`. 0 is the condition."""
    kind: str = ""
    """The keyword of a block: `if`, `for`, `while`, `until`, `select`, `case`, `{` or `(`; empty if simple."""
    name: str = ""
    """Of a function."""
    words: list[str] = field(default_factory=list)
    """As written, without redirections; of a `for`, `select` or `case`, those of its first line."""
    places: list[int] = field(default_factory=list)
    """Where each word begins."""
    after: str = "\n"
    """The operator that ends it, a line break at the end."""
    branches: int = 0
    conditions: set[int] = field(default_factory=lambda: {0})
    """Its branches that are conditions."""


_OPERATOR = re.compile(r"\n|;;&|;;|;&|;|&&|\|\||\|&|\||&(?!>)|[()]")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>&|<&|>>|>\||[<>](?!\())|&>>?")
_SPACE = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_BLANK = re.compile(rf"{_SPACE.pattern}|#[^\n]*")
_TEST = re.compile(r"\[\[[ \t](?:[^\n]|\\\n){0,1000}?[ \t]\]\](?![^\s;&|)])|\(\((?:[^\n]|\\\n){0,1000}?\)\)")
"""`[[ … ]]` and `(( … ))` in one line: operators in them are not those of the shell."""
_QUOTED = re.compile(r"'[^']*'?|\$'(?:[^'\\]|\\.)*'?", re.DOTALL)
_CLOSERS = {"$((": "))", "$(": ")", "${": "}", "`": "`", '"': '"', "<(": ")", ">(": ")"}
_IN_QUOTES = {opener: closer for opener, closer in _CLOSERS.items() if opener[0] in "$`"}
_CLOSES = {"fi": ("if",), "done": ("for", "while", "until", "select"), "esac": ("case",), "}": ("{",), ")": ("(",)}
_CONDITIONAL = frozenset({"if", "while", "until"})
_HEADED = frozenset({"for", "select", "case"})
_PREFIXES = frozenset({"!", "time", "coproc"})
_NEXT_BRANCH = frozenset({"then", "do", "else", "elif"})
_NO_PARENTHESES = re.compile(r"\(\s{0,80}\)")


def word_end(text: str, start: int) -> int:
    """The position behind the word that begins at `start`, with its quotes and substitutions."""
    closers: list[str] = []
    at = start
    while at < len(text):
        char, closer = text[at], closers[-1] if closers else ""
        if char == "\\":
            at += 2
        elif closer and text.startswith(closer, at):
            closers.pop()
            at += len(closer)
        elif closer != '"' and (quoted := _QUOTED.match(text, at)):
            at = quoted.end()
        elif opener := next((it for it in (_IN_QUOTES if closer == '"' else _CLOSERS) if text.startswith(it, at)), ""):
            closers.append(_CLOSERS[opener])
            at += len(opener)
        elif char == "(" and (closer in (")", "))") or (not closer and at > start and text[at - 1] in "=@?*+!")):
            closers.append(")")
            at += 1
        elif not closer and char in " \t\n\r\f\v;&|<>()":
            break
        else:
            at += 1
    return min(at, len(text))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Command] = []
        self.block: Command | None = None
        self.now: Command | None = None
        """The command that is being read; a block behind its closing keyword takes redirections and an operator."""
        self.before = "\n"
        self.prefix = -1
        """Where `!`, `time` or a function's name in front of the next command begins."""
        self.function = ""
        self.documents: list[tuple[str, Command | None]] = []
        self.in_pattern = False
        """Of `case`."""

    def read(self) -> list[Command]:
        at = 0
        while at < len(self.text):
            is_first = not self.in_pattern and (self.now is None or (self.now is self.block and not self.now.words))
            if blank := _BLANK.match(self.text, at):
                at = blank.end()
            elif redirection := _REDIRECTION.match(self.text, at):
                at = self._redirect(redirection[0], at, redirection.end())
            elif is_first and (test := _TEST.match(self.text, at)):
                at = self._word(at, test.end())
            elif operator := _OPERATOR.match(self.text, at):
                at = self._operator(operator[0], at, operator.end())
            else:
                at = self._word(at, max(at + 1, word_end(self.text, at)))
        return self.found

    def _new(self, start: int, kind: str = "") -> Command:
        start, self.prefix = (self.prefix if self.prefix >= 0 else start), -1
        made = Command(start, start, self.before, self.block, self.block.branches if self.block else 0, kind)
        self.found.append(made)
        return made

    def _redirect(self, operator: str, start: int, at: int) -> int:
        self.now = self.now or self._new(start)
        if blank := _SPACE.match(self.text, at):
            at = blank.end()
        self.now.end = word_end(self.text, at)
        if operator.lstrip("0123456789") in ("<<", "<<-"):
            self.documents.append((re.sub(r"['\"\\]", "", self.text[at : self.now.end]), self.now))
        return self.now.end

    def _operator(self, operator: str, start: int, end: int) -> int:
        if self.in_pattern:
            if operator == ")" and self.block:
                self.block.branches += 1
                self.in_pattern, self.before = False, ";"
        elif operator == "(":
            empty = _NO_PARENTHESES.match(self.text, start)
            if self.now and len(self.now.words) == 1 and not self.now.kind and empty:
                self.function, self.prefix = self.now.words[0], self.now.start
                self.found.pop()
                self.now = None
            elif self.now is None and not (self.function and empty):
                self._open("(", start)
                return end
            return empty.end() if empty else end
        elif operator == ")":
            self._end(";")
            self._close(")", end)
        else:
            self._end(operator)
            if operator.startswith(";") and operator != ";":
                self.in_pattern = self.block is not None and self.block.kind == "case"
        return self._skip_documents(end) if operator == "\n" else end

    def _skip_documents(self, at: int) -> int:
        for word, command in self.documents:
            last = re.compile(rf"^[ \t]*{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, at)
            at = last.end() if last else len(self.text)
            if command:
                command.end = at
        self.documents.clear()
        return at

    def _end(self, operator: str) -> None:
        """End the command, or the first line of a block."""
        if self.now is not None:
            if self.now is self.block:
                operator = ";"
            else:
                self.now.after = operator
            self.now, self.before, self.prefix = None, operator, -1

    def _open(self, kind: str, start: int) -> None:
        block = self._new(start, kind)
        block.name, self.function = self.function, ""
        block.conditions = {0} if kind in _CONDITIONAL | _HEADED else set()
        self.block, self.now, self.before = block, block if kind in _HEADED else None, ";"

    def _close(self, keyword: str, end: int) -> None:
        block = self.block
        if block is not None and block.kind in _CLOSES[keyword]:
            block.end = end
            self.block, self.now, self.in_pattern = block.around, block, False

    def _word(self, start: int, end: int) -> int:
        word = self.text[start:end]
        if self.in_pattern:
            if word == "esac":
                self._close(word, end)
            return end
        if self.now and self.now.kind and self.now is not self.block:  # `(a) then`
            self._end(";")
        if self.now is None and self._is_keyword(word, start, end):
            return end
        self.now = self.now or self._new(start)
        self.now.words.append(word)
        self.now.places.append(start)
        self.now.end = end
        if word == "in" and self.now.kind == "case" and len(self.now.words) > 1:
            self.now, self.in_pattern = None, True
        return end

    def _is_keyword(self, word: str, start: int, end: int) -> bool:
        if self.function == "function":
            self.function = word
        elif word == "function":
            self.function, self.prefix = word, start
        elif word in _PREFIXES:
            self.prefix = start if self.prefix < 0 else self.prefix
        elif word == "{" or word in _CONDITIONAL | _HEADED:
            self._open(word, start)
        elif word in _NEXT_BRANCH:
            if self.block:
                self.block.branches += 1
                self.block.conditions |= {self.block.branches} if word == "elif" else set()
            self.before = ";"
        elif word in _CLOSES:
            self._close(word, end)
        else:
            return False
        return True


def commands(text: str) -> list[Command]:
    """Simple commands and blocks, in the order in which they begin."""
    return _Reader(text).read()


def plain(word: str) -> str:
    """The word without its quotes."""
    try:
        return " ".join(shell_words.split(word))
    except ValueError:
        return word


_ENDS = frozenset({"exit", "return", "exec"})


def certain(text: str) -> tuple[tuple[str, ...], ...]:
    """The commands that `text` runs unless an earlier one fails, without quotes. Empty if it has blocks."""
    found: list[tuple[str, ...]] = []
    is_certain = True
    for command in commands(text):
        words = tuple(map(plain, command.words))
        if command.kind or command.after in (")", ";;"):
            return ()
        program = words[0] if words else ""
        is_list = command.before in ("&&", "||", "|", "|&")
        is_certain = (not is_list or (is_certain and command.before != "||")) and program not in ("[", "test")
        if is_certain and program:
            found.append(words)
        if program in _ENDS:
            break
    return tuple(found)
