"""The settings of a training by dotted name: their text on a command line, and a hash of all of them."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import PurePath
from typing import Any, Dict, List, Mapping, Sequence

from serried.protocol import placeholders

ARGUMENTS = ("args", "args_no_hyphens", "args_no_boolean_flags")
"""Words in braces for all parameters of a trial: `--lr=0.1`; `lr=0.1`; `--flag` in place of `--flag=True`."""
DOCUMENTS = ("args_json", "args_json_file")
"""The same as one word: the parameters as JSON, and the path of a file with this JSON."""
_TAKEN = re.compile(rf"\{{({'|'.join((*ARGUMENTS, *DOCUMENTS))})\}}")


def spelled(value: Any) -> str:
    """A value for a command line: text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def takes_arguments(command: Sequence[str]) -> bool:
    """Whether the command says where the parameters of a trial go."""
    return any(_TAKEN.search(word) for word in command)


def placed(command: Sequence[str], parameters: Sequence[str]) -> List[str]:
    """The parameters that have a place of their own in the command: `{config.lr}`."""
    names = {name for word in command for name in placeholders.used(word)}
    return [name for name in parameters if f"config.{name}" in names]


def with_arguments(
    command: Sequence[str], parameters: Mapping[str, Any], json_file: str, *, is_shell: bool, is_template: bool
) -> List[str]:
    """The command with the parameters of a trial in the places of `{args}` and the like.

    These are W&B's macros: https://docs.wandb.ai/guides/sweeps/sweep-config-keys#command-macros. Parameters with a
    place of their own are left out of `{args}`. In a part of a word they are joined by spaces, and quoted only for a
    shell. In a template, whose placeholders are filled later, `{seed}` in a value becomes `{{seed}}`.
    """
    own = placed(command, list(parameters))
    rest = {name: value for name, value in parameters.items() if name not in own}
    values = {name: _arguments(name, rest) for name in ARGUMENTS}
    values.update(args_json=[json.dumps(rest, ensure_ascii=False)], args_json_file=[json_file])
    if is_template:
        values = {name: [placeholders.escaped(word) for word in words] for name, words in values.items()}

    def joined(match: re.Match[str]) -> str:
        return " ".join(map(shlex.quote if is_shell else str, values[match[1]]))

    filled: List[str] = []
    for word in command:
        match = None if is_shell else _TAKEN.fullmatch(word)
        filled += values[match[1]] if match else [_TAKEN.sub(joined, word)]
    return filled


def _arguments(form: str, parameters: Mapping[str, Any]) -> List[str]:
    words: Dict[str, str] = {}
    for name, value in parameters.items():
        if form == "args_no_boolean_flags" and isinstance(value, bool):
            words.update({f"--{name}": ""} if value else {})
        else:
            words[name if form == "args_no_hyphens" else f"--{name}"] = f"={as_argument(value)}"
    return [name + value for name, value in words.items()]


def as_argument(value: Any) -> str:
    """A value as W&B passes it: text unchanged, `True`, `None` and numbers as Python, lists and tables as JSON."""
    if isinstance(value, str):
        return value
    return str(value) if _is_simple(value) else json.dumps(value, ensure_ascii=False)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of twelve characters, equal for equal settings on any machine. Paths do not count.

    A path is a `pathlib` path, or text that begins with `/`, `~/`, `./` or `../`.
    """
    without_paths = {name: value for name, value in settings.items() if not _is_path(value)}
    text = json.dumps(without_paths, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_path(value: Any) -> bool:
    return isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(("/", "~/", "./", "../")))
