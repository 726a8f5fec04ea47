"""Words of a script, with the variables in them that the script itself has set, or that Serried knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from serried.protocol import names, settings

_PIECE = re.compile(
    r"""
      '(?P<single>[^']*)'
    | \$'(?P<ansi>(?:[^'\\]|\\.)*)'
    | \\(?P<escaped>.)
    | (?P<quote>")
    | \$(?:\{(?P<braced>\w+)\}|(?P<name>[A-Za-z_]\w*|[0-9@*#?]))
    | \$\{(?P<array>\w+)\[[@*]\]\}
    | (?P<named>\{\w*\})
    | (?P<braces>\{[^{}\s'"$`\\]*(?:,|\.\.)[^{}\s'"$`\\]*\})
    | (?P<shell>\$[({]|`|[*?\[{])
    | (?P<tilde>~)
    | (?P<plain>[^'"\\$`*?\[{~]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_LAST_NAME = re.compile(r"\$([A-Za-z_]\w*)$")
_SUM = re.compile(r"\$\(\([^()]*\)\)")
_BARE = re.compile(r"(?<![\w$}{])([A-Za-z_]\w*)")
"""A variable within `$((…))`, where it needs no `$`."""
_PLAIN = re.compile(r"(?:[\w@%+=:,./-]|\{\w+\})+", re.ASCII)
"""What means itself to bash, Serried's placeholders included."""
_PLACEHOLDER = re.compile(r"\{(NAMES)\}".replace("NAMES", "|".join((*names.PLACEHOLDERS, settings.PLACEHOLDER))))


@dataclass(frozen=True)
class Piece:
    text: str
    is_shell: bool = False
    """Only a shell can say what it is: a variable of the node, `$(…)`, a pattern."""
    is_quoted: bool = False
    """In double quotes."""


Word = tuple[Piece, ...]


def static(word: Word) -> str | None:
    """The text of a word that needs no shell, else None."""
    return None if any(piece.is_shell for piece in word) else "".join(piece.text for piece in word)


def literal(text: str) -> Word:
    return (Piece(text),)


def escaped(text: str) -> str:
    """`text` with what would be one of Serried's placeholders doubled: `{seed}` is the script's own here."""
    return _PLACEHOLDER.sub(r"{{\1}}", text)


_OUTSIDE = re.compile(rf"{{({_PLACEHOLDER.pattern})}}|\{{(run|task)\}}")
_VARIABLES = {"run": "${SERRIED_RUN_ID}", "task": "${SERRIED_TASK}"}


def outside(word: Word) -> Word:
    """The word where it is no command's, and Serried fills in nothing: bash has variables for that."""
    made: list[Piece] = []
    for piece in word:
        position = 0
        for match in () if piece.is_shell else _OUTSIDE.finditer(piece.text):
            made += [Piece(piece.text[position : match.start()]), Piece(_variable(match), True, True)]
            made[-1] = made[-1] if match[3] else Piece(match[1])
            position = match.end()
        made.append(Piece(outside_text(piece.text[position:]), piece.is_shell, piece.is_quoted))
    return tuple(piece for piece in made if piece.text)


def outside_text(text: str) -> str:
    return _OUTSIDE.sub(_variable, text)


def _variable(match: re.Match[str]) -> str:
    return _VARIABLES[match[3]] if match[3] else match[1]


def as_shell(word: Word) -> str:
    """The word as bash has to be given it."""
    if not any(piece.is_shell for piece in word):
        return _quoted("".join(piece.text for piece in word))
    if all(piece.is_quoted if piece.is_shell else _PLAIN.fullmatch(piece.text) for piece in word):
        return f'"{_joined(piece.text for piece in word)}"'
    return _joined(_shell(piece) for piece in word)


def _joined(texts: Iterable[str]) -> str:
    """`$A` and `z` as `${A}z`."""
    made = ""
    for text in texts:
        made = _LAST_NAME.sub(r"${\1}", made) if re.match(r"\w", text) else made
        made += text
    return made


def _shell(piece: Piece) -> str:
    if not piece.is_shell:
        return _quoted(piece.text) if piece.text else ""
    return f'"{piece.text}"' if piece.is_quoted else piece.text


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else shlex.quote(text)


@dataclass
class Variables:
    """What is known of the script's variables, so far as it has been read."""

    values: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    """Several words: an array."""
    used: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)

    def set(self, name: str, words: Iterable[Word]) -> None:
        self.values[name] = tuple(words)

    def expand(self, raw: str) -> list[Word]:
        """The words that one written word becomes: none, one, or several where `$ARGS` holds several."""
        made: list[list[Piece]] = [[]]
        has_quotes = False
        position, in_quotes, opened = 0, False, False
        while match := _PIECE.match(raw, position):
            kind = match.lastgroup or ""
            if in_quotes and kind in ("single", "ansi", "tilde"):
                kind, text, position = "plain", raw[position], position + 1
            else:
                text, position = match[kind], match.end()
            opened = opened or (kind == "shell" and text == "{" and not in_quotes)
            if kind == "quote":
                in_quotes, has_quotes = not in_quotes, True
            elif kind in ("braced", "name"):
                self._variable(match[0], text, made, in_quotes=in_quotes)
            elif kind == "array":
                self._array(match[0], text, made, in_quotes=in_quotes)
            elif kind == "braces" and not in_quotes:
                made[-1].append(Piece(text, is_shell=True))
            elif kind == "shell":
                position = self._shell(raw, match.start(), made, in_quotes=in_quotes)
            else:
                has_quotes = has_quotes or kind in ("single", "ansi")
                is_brace = (
                    opened and not in_quotes and kind == "plain" and re.fullmatch(r"[\w,.}/-]+", text)
                )  # `{"a b",c}`
                made[-1].append(Piece(text, is_shell=True) if is_brace else _read(kind, text, in_quotes=in_quotes))
        words = [tuple(word) for word in made if word]
        return words or ([literal("")] if has_quotes else [])

    def one(self, raw: str) -> Word:
        """The value that an assignment gives: never split into words."""
        words = self.expand(raw if raw[:1] in "\"'" else _unsplit(raw))
        spaced: list[Piece] = []
        for word in words:
            spaced += [*([Piece(" ")] if spaced else []), *word]
        return tuple(spaced)

    def _variable(self, raw: str, name: str, made: list[list[Piece]], *, in_quotes: bool) -> None:
        self.used.add(name)
        known = self.values.get(name)
        if known is None:
            made[-1].append(Piece(escaped(raw), is_shell=True, is_quoted=in_quotes))
            return
        for piece in known[0] if known else ():
            if in_quotes or piece.is_shell:
                made[-1].append(Piece(piece.text, piece.is_shell, in_quotes))
            else:
                _split(piece.text, made)

    def _array(self, raw: str, name: str, made: list[list[Piece]], *, in_quotes: bool) -> None:
        self.used.add(name)
        if name not in self.values:
            made[-1].append(Piece(raw, is_shell=True, is_quoted=in_quotes))
            return
        for number, word in enumerate(self.values[name]):
            if number:
                made.append([])
            made[-1] += word

    def _shell(self, raw: str, start: int, made: list[list[Piece]], *, in_quotes: bool) -> int:
        """Takes what bash alone can expand; returns where that ends."""
        if raw[start] in "*?[{":
            made[-1].append(Piece(raw[start], is_shell=not in_quotes))
            return start + 1
        end = _closing(raw, start)
        if (number := self._number(raw[start:end])) is not None:
            made[-1].append(Piece(number))
            return end
        made[-1].append(Piece(self.within(raw[start:end]), is_shell=True, is_quoted=in_quotes))
        return end

    def _number(self, raw: str) -> str | None:
        """What `$((2 * 4))` comes to, where it is as simple as that."""
        match = re.fullmatch(r"\$\(\( *(\d{1,9}) *(?:([-+*]) *(\d{1,9}) *)?\)\)", self.within(raw))
        if match is None:
            return None
        first, second = int(match[1]), int(match[3] or 0)
        return str({None: first, "+": first + second, "-": first - second, "*": first * second}[match[2]])

    def within(self, text: str) -> str:
        """`text` of bash with the variables filled in whose values are plain, wherever they stand."""
        text = _SUM.sub(lambda match: _BARE.sub(r"$\1", match[0]), text)
        made, position = "", 0
        for match in _NAME.finditer(text):
            name = match[1] or match[2]
            self.used.add(name)
            known = self.values.get(name, ())
            value = static(known[0]) if len(known) == 1 else None
            is_plain = value is not None and _PLAIN.fullmatch(value)
            if value and "{run}" in value and text.count("$((", 0, match.start()) > text.count("))", 0, match.start()):
                is_plain = None  # to reckon with it takes the job's own number
            made += escaped(text[position : match.start()]) + (value if is_plain and value else escaped(match[0]))
            position = match.end()
        self.used |= set(re.findall(r"\$\{(\w+)\[", text))
        return made + escaped(text[position:])


def _read(kind: str, text: str, *, in_quotes: bool) -> Piece:
    if kind == "tilde":
        return Piece("~", is_shell=True)
    if kind == "escaped":
        return Piece("" if text == "\n" else text if not in_quotes or text in '$`"\\' else f"\\{text}")
    if kind == "ansi":
        return Piece(re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), text, flags=re.DOTALL))
    return Piece(escaped(text))


def _split(text: str, made: list[list[Piece]]) -> None:
    """Unquoted: every blank parts two words."""
    parts = re.split(r"[ \t\n]+", text)
    for number, part in enumerate(parts):
        if number:
            made.append([])
        if part:
            made[-1].append(Piece(part))


def _unsplit(raw: str) -> str:
    """An unquoted value as bash assigns it: `A=$B` does not split what `$B` holds."""
    return _NAME.sub(lambda match: f'"{match[0]}"', raw) if re.fullmatch(r"[^'\"`(\\]*", raw) else raw


def _closing(raw: str, start: int) -> int:
    """Where the `$(…)`, `${…}` or backtick at `start` ends."""
    if raw[start] == "`":
        end = raw.find("`", start + 1)
        return len(raw) if end < 0 else end + 1
    pairs = {"(": ")", "{": "}"}
    opened, closed = raw[start + 1], pairs[raw[start + 1]]
    depth = 0
    for position in range(start + 1, len(raw)):
        depth += (raw[position] == opened) - (raw[position] == closed)
        if depth == 0:
            return position + 1
    return len(raw)
