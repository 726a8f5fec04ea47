"""Flags that `run` and `submit` share, made from the definitions: one for each resource."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from serried import config
from serried.config import layers
from serried.config.definitions import Key, Resources, keys
from serried.config.values import BOOLEAN, BadValue
from serried.errors import UsageError
from serried.plan import Launch
from serried.ui import console

Function = TypeVar("Function", bound=Callable[..., Any])

_RESOURCES = keys(Resources)
_LAUNCH = keys(Launch)["kind"]


_SIZE = ("nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu", "time")
"""Those of the resources that say how large a run is; the others are the scheduler's own matters."""


OLD = {"--each": "--commands"}
"""Former names of options: still understood, with a note."""


class Sorted(click.Command):
    """A command that lists its own options first, then those that many commands share, by subject."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {flag for param in self.params for flag in param.opts}
        return super().parse_args(ctx, [_current(word) if OLD.get(_flag_of(word)) in known else word for word in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Resources": [], "For the scheduler": []}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if line:
                about = "Resources" if param.name in _SIZE else "For the scheduler"
                sections[about if param.name in _RESOURCES else "Options"].append(line)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _flag_of(word: str) -> str:
    return word.partition("=")[0]


def _current(word: str) -> str:
    """`--each=FILE` with the option's current name."""
    old = _flag_of(word)
    console.note(f"`{old}` is now `{OLD[old]}`")
    return OLD[old] + word[len(old) :]


def flag(key: str) -> str:
    """The flag for a resource: `mem_per_node` is `--mem-per-node`."""
    return "--" + key.replace("_", "-")


def resources(function: Function) -> Function:
    """Add one flag for each key of the table `resources`; the function gets what was given as text."""
    for name, key in reversed(_RESOURCES.items()):
        function = _option(name, key)(function)
    return function


def _option(name: str, key: Key) -> Callable[[Function], Function]:
    if key.kind is BOOLEAN:
        return click.option(f"{flag(name)}/--no-{name}", name, default=None, help=key.help)
    default = f"  [default: {key.default.replace('`', '')}]" if key.default else ""
    names = [flag(name), *([flag(key.alias)] if key.alias else [])]
    return click.option(*names, name, metavar=key.kind.metavar, multiple=key.kind.many, help=key.help + default)


def common(function: Function) -> Function:
    """Add --cluster, --launch, --name and --set."""
    decorators = [
        click.option("--launch", metavar="KIND", help="Launcher of the ranks: agent, torchrun …  [default: agent]"),
        click.option("--cluster", metavar="NAME", help="Where to run; `serried clusters` lists them."),
        click.option("--name", metavar="NAME", help="Name of the run."),
        click.option(
            "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, as in `--set limit.grace=60s`."
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def overrides(values: Mapping[str, Any], settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """What was given, by dotted key, for `config.resolve`.

    `values` may hold more than resources; the rest is left alone. A flag beats `--set` of the same key.

    Raises UsageError that names the flag.
    """
    given = dict(_setting(text) for text in settings)
    flags = [(name, f"resources.{name}", key) for name, key in _RESOURCES.items()]
    for name, place, key in [*flags, ("launch", "launch.kind", _LAUNCH)]:
        value = values.get(name)
        if value is None or value == ():
            continue
        try:
            key.kind.parse(value)
        except BadValue as error:
            if _takes_away(key, value):
                given[place] = ""
                continue
            raise UsageError(f"`{flag(name)}` {error}", hint=error.hint) from None
        given[place] = value
    return given


def _takes_away(key: Key, value: Any) -> bool:
    """Whether the flag unsets the setting. An amount that is empty is a shell's variable that was never set."""
    return key.is_optional and key.kind.metavar == "TEXT" and value in ("", ("",))


def resolve(experiment: str | None, overrides: Mapping[str, Any], cluster: str | None) -> config.Resolved:
    """The settings of an experiment; where none is named, of the only one, else those of a command without any."""
    here = Path.cwd()
    is_clear = experiment is not None or len(config.catalogue(here, os.environ).experiments) == 1
    return config.resolve(experiment, None if is_clear else (), overrides, cluster, here, os.environ)


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"`--set {text}` says no `KEY=VALUE`", hint="for example `--set resources.nodes=4`")
    return key.strip(), layers.guess(value)
