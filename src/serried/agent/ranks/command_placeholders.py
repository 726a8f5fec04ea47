"""Placeholders of a command and their values: `{resume}`, and options that go where there is no value. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Dict, List, Mapping, NamedTuple

from serried.protocol import names, settings

_NAMES = "|".join((*names.PLACEHOLDERS, settings.PLACEHOLDER))
PREFIX = r"[^{}\s]*=|-[^{}\s]*|"
"""`{rank:03d}` is Python's own, and stays."""
_PLACEHOLDER = re.compile(
    r"\{\{(?P<literal>NAMES)\}\}|\{(?P<plain>NAMES)\}"
    r"|(?<!\$)\{(?P<before>NAMES):(?P<prefix>PREFIX)\}|(?<!\$)\{(?P<only>NAMES)\?(?P<word>[^{}\s]*)\}".replace(
        "NAMES", _NAMES
    ).replace("PREFIX", PREFIX)
)
_HEREDOC = re.compile(r"<<-?[ \t]*(?P<quote>['\"\\]?)(?P<word>\w+)")
PLAIN, SINGLE, DOUBLE, ANSI, HERE = "", "'", '"', "$'", "<<"
"""How bash reads what stands somewhere in a text."""
_ENDS = {SINGLE: "'", ANSI: "'", DOUBLE: '"'}
_IN_ALL = {"$(": ")", "`": "`"}
_BEGINS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {**_IN_ALL, "(": ")", ANSI: ANSI, SINGLE: SINGLE, DOUBLE: DOUBLE},
    DOUBLE: _IN_ALL,
}
_NEEDS_BACKSLASH = {DOUBLE: r'([\\$`"])', ANSI: r"([\\'])", HERE: r"([\\$`])"}


def fill(word: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value and `{{name}}` by `{name}`; every other brace stays."""
    return _PLACEHOLDER.sub(lambda match: _text(match, values), word)


def fill_words(words: List[str], values: Mapping[str, str]) -> List[str]:
    """The same for each; a word that is nothing but an option without a value goes."""
    return [fill(word, values) for word in words if not _vanishes(_PLACEHOLDER.fullmatch(word), values)]


def fill_shell(text: str, values: Mapping[str, str]) -> str:
    """The same for a line of bash: each value arrives as it is, whatever quotes it stands in."""
    quotes = reading(text)

    def quoted(match: "re.Match[str]") -> str:
        found = _text(match, values)
        is_ours = match.group("literal") is None and found != match.group() and not _vanishes(match, values)
        return quote(found, quotes.get(match.start(), PLAIN)) if is_ours else found

    return _PLACEHOLDER.sub(quoted, text)


def _vanishes(match: "re.Match[str] | None", values: Mapping[str, str]) -> bool:
    name = match and (match.group("before") or match.group("only"))
    return bool(name) and values.get(str(name)) == ""


def _text(match: "re.Match[str]", values: Mapping[str, str]) -> str:
    found = match.groupdict()
    if found["literal"]:
        return f"{{{found['literal']}}}"
    name = str(found["plain"] or found["before"] or found["only"])
    value = values.get(name)
    if value is None:
        return match.group()
    if found["plain"] or not value:
        return value
    return f"{found['prefix']}{value}" if found["before"] else str(found["word"])


def quote(text: str, how: str) -> str:
    if how == PLAIN:
        return shlex.quote(text)
    if how == SINGLE:
        return text.replace("'", "'\\''")
    return re.sub(_NEEDS_BACKSLASH[how], r"\\\1", text) if how in _NEEDS_BACKSLASH else text


class _Heredoc(NamedTuple):
    word: str
    how: str


def reading(text: str) -> Dict[int, str]:
    """How bash reads each character of `text`: within which quotes, or in a here-document."""
    found: Dict[int, str] = {}
    open_: List[str] = [PLAIN]
    waiting: List[_Heredoc] = []
    at = 0
    while at < len(text):
        how = PLAIN if open_[-1] in (")", "`") else open_[-1]
        found[at] = how
        if text[at] == "\n" and waiting and how == PLAIN:
            at = _skip_heredocs(text, at + 1, waiting, found)
            continue
        if how == PLAIN and (begin := _HEREDOC.match(text, at)) and text[at : at + 3] != "<<<":
            waiting.append(_Heredoc(begin["word"], "<<'" if begin["quote"] else HERE))
        at += _step(text, at, how, open_)
    return found


def _step(text: str, at: int, how: str, open_: List[str]) -> int:
    """Note what begins or ends here; how many characters that is."""
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


def _skip_heredocs(text: str, at: int, waiting: List[_Heredoc], found: Dict[int, str]) -> int:
    """Where bash reads on as usual, after the documents that have begun on the line before `at`."""
    while waiting and at < len(text):
        document = waiting.pop(0)
        end = re.compile(rf"^\t*{document.word}$", re.MULTILINE).search(text, at)
        stop = end.end() if end else len(text)
        found.update(dict.fromkeys(range(at, stop), document.how))
        at = min(stop + 1, len(text))
    return at
