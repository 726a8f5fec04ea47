"""The settings of the ranks' environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import environment as kinds


@dataclass(frozen=True)
class Environment:
    venv: str | bool | None = key(
        kinds.PLACE,
        "Virtual environment: a folder, a file to build it from, or `true`: see [environments](environments.md).",
        default="the active one",
    )
    conda: str | bool | None = key(
        kinds.NAMED_PLACE,
        "Conda environment: its name or folder, or a file to build it from, or `true` for `environment.yml`.",
        default="the active one",
    )
    python: str | None = key(
        values.TEXT, "Python of a virtual environment that Serried builds.", default="`python3` on PATH"
    )
    torch: str | None = key(
        kinds.TORCH, "Preferred build of PyTorch in environments that Serried builds.", default="PyPI's"
    )
    modules: tuple[str, ...] = key(values.TEXTS, "Modules to load, in this order.", value=())
    module_purge: bool = key(
        values.BOOLEAN, "Unload all modules before `modules` are loaded.", default="false", value=False
    )
    setup: str = key(
        kinds.LINES,
        "Lines of bash to run on each node before its ranks start. Ranks inherit exports and limits.",
        value="",
    )
    check: str | None = key(
        kinds.LINES,
        "Python code that `submit` runs in the environment first: `import torch`. `false` skips every check.",
        default="activate the environment",
    )
    env: Mapping[str, str] = key(values.VARIABLES, "Variables to set. Merged by name.", value={})
    secrets: tuple[str, ...] = key(
        values.NAMES,
        "Names of secret variables. Their values are read at submit and appear in no file of Serried.",
        value=(),
    )
    env_file: str | None = key(values.TEXT, "File of `NAME=value` lines. The values are secrets.")
    inherit: str | tuple[str, ...] = key(
        values.INHERIT, "Variables to inherit from the submitting shell.", default="`all`", value="all"
    )
    env_file_names: tuple[str, ...] = ()
    """The names in `env_file`; the file's path is absolute once resolved, as are those of `venv` and `conda`."""
