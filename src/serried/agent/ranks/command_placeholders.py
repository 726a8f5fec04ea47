"""Replaces the placeholders of a command, such as `{resume}`, and omits options without a value. Pure."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple

from serried.schema.placeholders import PLACEHOLDER, name_of

_HEREDOC = re.compile(r"<<-?[ \t]*(?P<quote>['\"\\]?)(?P<word>\w+)")
PLAIN, SINGLE, DOUBLE, ANSI, HERE = "", "'", '"', "$'", "<<"
"""How bash reads a part of a text: outside or inside quotes, or in a here-document."""
_ENDS = {SINGLE: "'", ANSI: "'", DOUBLE: '"'}
_IN_ALL = {"$(": ")", "`": "`"}
_BEGINS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {**_IN_ALL, "(": ")", ANSI: ANSI, SINGLE: SINGLE, DOUBLE: DOUBLE},
    DOUBLE: _IN_ALL,
}
_NEEDS_BACKSLASH = {DOUBLE: r'([\\$`"])', ANSI: r"([\\'])", HERE: r"([\\$`])"}


def fill(word: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value and `{{name}}` by `{name}`; every other brace stays."""
    return re.sub(PLACEHOLDER, lambda match: _text(match, values), word)


def fill_words(words: List[str], values: Mapping[str, str]) -> List[str]:
    """`fill` for each word. A word that consists of an option without a value is omitted."""
    return [fill(word, values) for word in words if not _vanishes(re.fullmatch(PLACEHOLDER, word), values)]


def fill_shell(text: str, values: Mapping[str, str]) -> str:
    """`fill` for a line of bash. Each value is quoted, so that the program receives it unchanged."""
    quotes = reading(text)

    def quoted(match: "re.Match[str]") -> str:
        filled = _text(match, values)
        has_value = match.group("literal") is None and filled != match.group() and not _vanishes(match, values)
        return quote(filled, quotes.get(match.start(), PLAIN)) if has_value else filled

    return re.sub(PLACEHOLDER, quoted, text)


def _vanishes(match: "re.Match[str] | None", values: Mapping[str, str]) -> bool:
    name = match and (match.group("before") or match.group("only"))
    return bool(name) and values.get(str(name)) == ""


def _text(match: "re.Match[str]", values: Mapping[str, str]) -> str:
    parts = match.groupdict()
    if parts["literal"]:
        return f"{{{parts['literal']}}}"
    value = values.get(name_of(match))
    if value is None:
        return match.group()
    if parts["plain"] or not value:
        return value
    return f"{parts['prefix']}{value}" if parts["before"] else str(parts["word"])


def quote(text: str, how: str) -> str:
    if how == PLAIN:
        import shlex

        return shlex.quote(text)
    if how == SINGLE:
        return text.replace("'", "'\\''")
    return re.sub(_NEEDS_BACKSLASH[how], r"\\\1", text) if how in _NEEDS_BACKSLASH else text


class _Heredoc(NamedTuple):
    word: str
    how: str


def reading(text: str) -> Dict[int, str]:
    """How bash reads each character of `text`, by position."""
    readings: Dict[int, str] = {}
    open_: List[str] = [PLAIN]
    waiting: List[_Heredoc] = []
    at = 0
    while at < len(text):
        how = PLAIN if open_[-1] in (")", "`") else open_[-1]
        readings[at] = how
        if text[at] == "\n" and waiting and how == PLAIN:
            at = _skip_heredocs(text, at + 1, waiting, readings)
            continue
        if how == PLAIN and (begin := _HEREDOC.match(text, at)) and text[at : at + 3] != "<<<":
            waiting.append(_Heredoc(begin["word"], "<<'" if begin["quote"] else HERE))
        at += _step(text, at, how, open_)
    return readings


def _step(text: str, at: int, how: str, open_: List[str]) -> int:
    """Note the quotes that begin or end at `at`. Returns the number of characters to skip."""
    here = text[at]
    if here == "\\" and how != SINGLE:
        return 2
    if here == _ENDS.get(how, open_[-1]):
        open_.pop()
    elif how not in (SINGLE, ANSI):
        begun = next((word for word in _BEGINS[how] if text.startswith(word, at)), None)
        if begun is not None:
            open_.append(_BEGINS[how][begun])
            return len(begun)
        if how == PLAIN and here == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            return (text + "\n").index("\n", at) - at
    return 1


def _skip_heredocs(text: str, at: int, waiting: List[_Heredoc], readings: Dict[int, str]) -> int:
    """The position after the here-documents that the line before `at` has begun."""
    while waiting and at < len(text):
        document = waiting.pop(0)
        end = re.compile(rf"^\t*{document.word}$", re.MULTILINE).search(text, at)
        stop = end.end() if end else len(text)
        readings.update(dict.fromkeys(range(at, stop), document.how))
        at = min(stop + 1, len(text))
    return at
