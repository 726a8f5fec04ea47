"""The placeholders of a command, such as `{resume}`, and `{args}` for the parameters of a sweep's trial. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence

from serried.schema import names, settings

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
"""A regular expression, compiled at its first use: that takes milliseconds, and most commands have no brace."""

ARGUMENTS = ("args", "args_no_hyphens", "args_hydra", "args_no_boolean_flags")
"""Words in braces for all parameters of a trial: `--lr=0.1`; `lr=0.1`; overrides; `--flag` in place of `--flag=True`.

All are W&B's except `args_hydra`: W&B passes text without the quotes that Hydra needs.
"""
DOCUMENTS = ("args_json", "args_json_file")
"""The same as one word: the parameters as JSON, and the path of a file with this JSON."""
_TAKEN = rf"\{{({'|'.join((*ARGUMENTS, *DOCUMENTS))})\}}"


def name_of(match: re.Match[str]) -> str:
    """`seed` for `{seed}`, `{seed:--seed=}` and `{seed?--seeded}`; empty for `{{seed}}`."""
    return match["plain"] or match["before"] or match["only"] or ""


def used(word: str) -> Iterator[str]:
    """The names of the placeholders that a node replaces in `word`."""
    return filter(None, map(name_of, re.finditer(PLACEHOLDER, word))) if "{" in word else iter(())


def used_variables(words: Iterable[str]) -> List[str]:
    """The variables of the environment that the words use: `HOME` for `{env.HOME}`."""
    found = [name for word in words for name in used(word) if name.startswith(OF_ENVIRONMENT)]
    return [name[len(OF_ENVIRONMENT) :] for name in dict.fromkeys(found)]


def escaped(text: str) -> str:
    """`text` with `{seed}` as `{{seed}}`. In a command whose placeholders are filled later it becomes `text` again."""
    return re.sub(PLACEHOLDER, r"{\g<0>}", text)


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
    values = {name: _arguments(name, rest) for name in ARGUMENTS}
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


def _arguments(form: str, parameters: Mapping[str, Any]) -> List[str]:
    words: Dict[str, str] = {}
    for name, value in parameters.items():
        if form == "args_no_boolean_flags" and isinstance(value, bool):
            words.update({f"--{name}": ""} if value else {})
        elif form == "args_hydra":
            from serried.schema.hydra_override import override_value  # sweeps alone

            words[name] = f"={override_value(value)}"
        else:
            words[name if form == "args_no_hyphens" else f"--{name}"] = f"={settings.as_argument(value)}"
    return [name + value for name, value in words.items()]
