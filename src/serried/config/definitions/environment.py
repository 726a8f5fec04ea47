"""What an experiment says of the environment that its ranks find."""

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
        "A virtual environment: its folder; or the file that Serried builds one from, or `true` for the file that it "
        "finds: see [environments](environments.md).",
        default="the active one",
    )
    conda: str | bool | None = key(
        kinds.NAMED_PLACE,
        "A conda environment: its name or folder; or the file that Serried builds one from, or `true` for "
        "`environment.yml`.",
        default="the active one",
    )
    python: str | None = key(
        values.TEXT, "The Python of a virtual environment that Serried builds.", default="`python3` on PATH"
    )
    torch: str | None = key(kinds.TORCH, "Which build of PyTorch pip prefers in what Serried builds.", default="PyPI's")
    modules: tuple[str, ...] = key(values.TEXTS, "What `module load` loads, in this order.", value=())
    module_purge: bool = key(
        values.BOOLEAN, "Unload what is loaded before `modules` are.", default="false", value=False
    )
    setup: str = key(
        kinds.LINES,
        "Lines of bash that run on each node before its ranks start, which get what they export and limit.",
        value="",
    )
    check: str | None = key(
        kinds.LINES,
        "Python that has to run in the environment here before anything is submitted: `import torch`. `false` does "
        "not try it at all.",
        default="that it can be made active",
    )
    env: Mapping[str, str] = key(values.VARIABLES, "Variables to set. Merged name by name.", value={})
    secrets: tuple[str, ...] = key(
        values.NAMES, "Variables whose values are taken at submit and are in no file of ours.", value=()
    )
    env_file: str | None = key(values.TEXT, "A file of `NAME=value` lines; its values are treated as secrets.")
    inherit: str | tuple[str, ...] = key(
        values.INHERIT, "What to take from the submitting shell.", default="`all`", value="all"
    )
    env_file_names: tuple[str, ...] = ()
    """What `env_file` defines; the file's path is absolute once resolved, as are those of `venv` and `conda`."""
