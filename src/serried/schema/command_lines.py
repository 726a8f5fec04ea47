"""The words of commands: placeholders such as `{resume}`, and the parameters of a sweep's trial. Pure.

A regular expression here is a text and compiled at its first use: that takes milliseconds, and most commands need none.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from serried.schema import names


def spelled(value: Any) -> str:
    """A value for a command line: text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_argument(value: Any) -> str:
    """A value as W&B passes it: text unchanged, `True`, `None` and numbers as Python, lists and tables as JSON."""
    if isinstance(value, str):
        return value
    is_simple = value is None or isinstance(value, (bool, int, float))
    return str(value) if is_simple else json.dumps(value, ensure_ascii=False)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of twelve characters, equal for equal settings on any machine. Paths do not count.

    A path is a `pathlib` path, or text that begins with `/`, `~/`, `./` or `../`.
    """
    begins = ("/", "~/", "./", "../")
    without_paths = {
        name: value
        for name, value in settings.items()
        if not (isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(begins)))
    }
    text = json.dumps(without_paths, sort_keys=True, default=str)
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]


SETTING = r"config\.[^{}\s:?]+"
"""A regular expression for `config.lr` in the placeholder `{config.lr}`."""

OF_ENVIRONMENT = "env."
VARIABLE = r"(?<!\$\{)env\.[A-Za-z_][A-Za-z0-9_]*"
"""A regular expression for `env.HOME` in `{env.HOME}`. `${env.name}` is an interpolation of Hydra, and stays."""

_NAMES = "|".join((*names.PLACEHOLDERS, SETTING, VARIABLE))
_PREFIX = r"[^{}\s]*=|-[^{}\s]*|"
"""Not `{rank:03d}`, which is Python's own and stays."""
_WORD = r"[^{}\s]*"
PLACEHOLDER = (
    rf"\{{\{{(?P<literal>(?:{_NAMES})(?::(?:{_PREFIX})|\?{_WORD})?)\}}\}}|\{{(?P<plain>{_NAMES})\}}"
    rf"|(?<!\$)\{{(?P<before>{_NAMES}):(?P<prefix>{_PREFIX})\}}|(?<!\$)\{{(?P<only>{_NAMES})\?(?P<word>{_WORD})\}}"
)


def _name_of(match: re.Match[str]) -> str:
    """`seed` for `{seed}`, `{seed:--seed=}` and `{seed?--seeded}`; empty for `{{seed}}`."""
    return match["plain"] or match["before"] or match["only"] or ""


def used(word: str) -> Iterator[str]:
    """The names of the placeholders that a node replaces in `word`."""
    return filter(None, map(_name_of, re.finditer(PLACEHOLDER, word))) if "{" in word else iter(())


def used_variables(words: Iterable[str]) -> List[str]:
    """The variables of the environment that the words use: `HOME` for `{env.HOME}`."""
    found = [name for word in words for name in used(word) if name.startswith(OF_ENVIRONMENT)]
    return [name[len(OF_ENVIRONMENT) :] for name in dict.fromkeys(found)]


def escaped(text: str) -> str:
    """`text` with `{seed}` as `{{seed}}`. In a command whose placeholders are filled later it becomes `text` again."""
    return re.sub(PLACEHOLDER, r"{\g<0>}", text)


def fill(word: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value and `{{name}}` by `{name}`; every other brace stays."""
    return re.sub(PLACEHOLDER, lambda match: _value(match, values), word)


def fill_words(words: List[str], values: Mapping[str, str]) -> List[str]:
    """`fill` for each word. A word that consists of an option without a value is omitted."""
    return [fill(word, values) for word in words if not _vanishes(re.fullmatch(PLACEHOLDER, word), values)]


def fill_shell(text: str, values: Mapping[str, str]) -> str:
    """`fill` for a line of bash. Each value is quoted, so that the program receives it unchanged."""
    quotes = _quotes(text)

    def quoted(match: re.Match[str]) -> str:
        filled = _value(match, values)
        is_value = not match["literal"] and filled != match[0] and not _vanishes(match, values)
        return _quote(filled, quotes.get(match.start(), UNQUOTED)) if is_value else filled

    return re.sub(PLACEHOLDER, quoted, text)


def _vanishes(match: re.Match[str] | None, values: Mapping[str, str]) -> bool:
    name = match and (match["before"] or match["only"])
    return bool(name) and values.get(str(name)) == ""


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    if match["literal"]:
        return f"{{{match['literal']}}}"
    value = values.get(_name_of(match))
    if value is None:
        return match[0]
    if match["plain"] or not value:
        return value
    return f"{match['prefix']}{value}" if match["before"] else match["word"]


UNQUOTED, SINGLE, DOUBLE, ANSI, HERE, HERE_QUOTED = "", "'", '"', "$'", "<<", "<<'"
"""How bash reads a part of a text: outside or inside quotes, or in a here-document."""
_CLOSERS = {SINGLE: "'", ANSI: "'", DOUBLE: '"'}
_SUBSTITUTIONS = {"$(": ")", "`": "`"}
_OPENERS: Mapping[str, Mapping[str, str]] = {
    UNQUOTED: {**_SUBSTITUTIONS, "(": ")", ANSI: ANSI, SINGLE: SINGLE, DOUBLE: DOUBLE},
    DOUBLE: _SUBSTITUTIONS,
    SINGLE: {},
    ANSI: {},
}
_NEEDS_BACKSLASH = {DOUBLE: r'([\\$`"])', ANSI: r"([\\'])", HERE: r"([\\$`])"}


def _quote(text: str, how: str) -> str:
    if how == UNQUOTED:
        import shlex

        return shlex.quote(text)
    if how == SINGLE:
        return text.replace("'", "'\\''")
    return re.sub(_NEEDS_BACKSLASH[how], r"\\\1", text) if how in _NEEDS_BACKSLASH else text


def _quotes(text: str) -> Dict[int, str]:
    """How bash reads the characters of `text`, by position. Characters behind a backslash are left out."""
    quotes: Dict[int, str] = {}
    open_: List[str] = [UNQUOTED]
    """The quotes and substitutions around the position, by what closes them."""
    documents: List[Tuple[str, str]] = []
    """The here-documents that begin on the next line: the last line of each, and how it is read."""
    at = 0
    while at < len(text):
        how = UNQUOTED if open_[-1] in (")", "`") else open_[-1]
        here, quotes[at] = text[at], how
        if here == "\n" and documents and how == UNQUOTED:
            at += 1
            while documents and at < len(text):
                last, how = documents.pop(0)
                end = re.compile(rf"^\t*{last}$", re.MULTILINE).search(text, at)
                stop = end.end() if end else len(text)
                quotes.update(dict.fromkeys(range(at, stop), how))
                at = min(stop + 1, len(text))
            continue
        if how == UNQUOTED and text.startswith("<<", at) and not text.startswith("<<<", at):
            begin = re.match(r"<<-?[ \t]*(['\"\\]?)(\w+)", text[at:])
            documents += [(begin[2], HERE_QUOTED if begin[1] else HERE)] if begin else []
        opener = next((opener for opener in _OPENERS[how] if text.startswith(opener, at)), "")
        if here == "\\" and how != SINGLE:
            at += 2
        elif here == _CLOSERS.get(how, open_[-1]):
            open_.pop()
            at += 1
        elif opener:
            open_.append(_OPENERS[how][opener])
            at += len(opener)
        elif how == UNQUOTED and here == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            at = (text + "\n").index("\n", at)
        else:
            at += 1
    return quotes


ARGUMENTS = ("args", "args_no_hyphens", "args_hydra", "args_no_boolean_flags")
"""Words in braces for all parameters of a trial: `--lr=0.1`; `lr=0.1`; overrides; `--flag` in place of `--flag=True`.

All are W&B's except `args_hydra`: W&B passes text without the quotes that Hydra needs.
"""
DOCUMENTS = ("args_json", "args_json_file")
"""The same as one word: the parameters as JSON, and the path of a file with this JSON."""
_TAKEN = rf"\{{({'|'.join((*ARGUMENTS, *DOCUMENTS))})\}}"


def takes_arguments(command: Sequence[str]) -> bool:
    """Whether the command says where the parameters of a trial go."""
    return any(re.search(_TAKEN, word) for word in command)


def placed(command: Sequence[str], parameters: Sequence[str]) -> List[str]:
    """The parameters that have a place of their own in the command: `{config.lr}`."""
    own = {name for word in command for name in used(word)}
    return [name for name in parameters if f"config.{name}" in own]


def with_arguments(
    command: Sequence[str], parameters: Mapping[str, Any], json_file: str, *, is_shell: bool, is_template: bool
) -> List[str]:
    """The command with the parameters of a trial in the places of `{args}` and the like.

    Most are W&B's macros: https://docs.wandb.ai/guides/sweeps/sweep-config-keys#command-macros. Parameters with a
    place of their own are left out of `{args}`. In a part of a word they are joined by spaces, and quoted only for a
    shell. In a template, whose placeholders are filled later, `{seed}` in a value becomes `{{seed}}`.
    """
    own = placed(command, list(parameters))
    rest = {name: value for name, value in parameters.items() if name not in own}
    # Not for each form: Hydra cannot write every value.
    forms = [form for form in ARGUMENTS if any(f"{{{form}}}" in word for word in command)]
    values = {form: list(_arguments(form, rest)) for form in forms}
    values.update(args_json=[json.dumps(rest, ensure_ascii=False)], args_json_file=[json_file])
    if is_template:
        values = {name: [escaped(word) for word in words] for name, words in values.items()}

    import shlex

    def joined(match: re.Match[str]) -> str:
        return " ".join(map(shlex.quote if is_shell else str, values[match[1]]))

    filled: List[str] = []
    for word in command:
        match = None if is_shell else re.fullmatch(_TAKEN, word)
        filled += values[match[1]] if match else [re.sub(_TAKEN, joined, word)]
    return filled


def _arguments(form: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    for name, value in parameters.items():
        if form == "args_hydra":
            yield f"{name}={override_value(value)}"
        elif form == "args_no_boolean_flags" and isinstance(value, bool):
            yield from [f"--{name}"] if value else []
        else:
            yield f"{'' if form == 'args_no_hyphens' else '--'}{name}={as_argument(value)}"


# Values in the override grammar of Hydra 1.3: https://hydra.cc/docs/1.3/advanced/override_grammar/basic/.

_PLAIN_TEXT = r"(?i:(?!(?:true|false|null|none|inf|nan)$)[A-Za-z_][A-Za-z0-9_./-]*)"
"""Text that Hydra reads as text. A name of a configuration group looks as users write it."""


class BadKey(ValueError):  # noqa: N818 - it names the value
    """The key of a table, which Hydra would read as something else: it has no quotes for keys."""

    def __init__(self, key: Any) -> None:
        super().__init__(key)
        self.key = key


def override_value(value: Any) -> str:
    """The words after `name=` from which Hydra reads `value`, of the same type and with each character.

    Raises BadKey.
    """
    if isinstance(value, str):
        return value if re.fullmatch(_PLAIN_TEXT, value) else _quoted_for_hydra(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(override_value, value))}]"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not re.fullmatch(_PLAIN_TEXT, key):
                raise BadKey(key)
        return "{" + ",".join(f"{key}:{override_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def _quoted_for_hydra(text: str) -> str:
    r"""Hydra reads `\'` as a quote, and halves backslashes before a quote only.

    `${` would begin an interpolation of OmegaConf, which reads `\${` as text, and halves backslashes before it.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\*)\Z", r"\1\1", text, count=1) + "'"
