"""What a program is wrapped in: variables before it, a container, `conda run`."""

from __future__ import annotations

from serried.importing import tables
from serried.importing.expand import Word, literal
from serried.importing.launch import NUL, ImportedLaunch, exported, long_options


def assignment(launch: ImportedLaunch) -> None:
    first = launch.words[0]
    name, _, rest = first[0].text.partition("=")
    launch.env[name] = (*((literal(rest)) if rest else ()), *first[1:]) or literal("")
    launch.drop(1)


def nothing(launch: ImportedLaunch) -> None:
    launch.drop(1)
    while launch.words and (launch.texts()[0].startswith("-")):
        launch.drop(1)


_ISOLATES = {"cleanenv", "e", "no-home", "contain", "c", "containall", "C"}
_OF_CONTAINER = {"nv", "rocm", "nvccli", "workdir", "W", "no-mount", "userns", "u", "fakeroot", "f"}
"""Serried's own affair there."""
_WITH_VALUE = {
    "bind", "B", "pwd", "cwd", "workdir", "W", "env", "home", "H", "overlay", "o", "scratch", "S", "no-mount",
}  # fmt: skip


def container(launch: ImportedLaunch) -> None:
    """`singularity exec … IMAGE program`."""
    texts = launch.texts()
    binds: list[str] = []
    position = 2
    while position < len(texts) and texts[position].startswith("-"):
        name, equals, value = texts[position].lstrip("-").partition("=")
        shown = launch.words[position]
        position += 1
        if name in _WITH_VALUE and not equals and position < len(texts):
            shown = launch.words[position]
            value = texts[position]
            position += 1
        if name in ("bind", "B"):
            binds += _written(shown).removeprefix("--bind=").split(",")
        elif name in _ISOLATES:
            launch.settings["container.contained"] = True
        elif name == "writable-tmpfs":
            launch.settings["container.writable"] = True
        elif name == "env":
            exported(launch, value, [])
        elif name in ("pwd", "cwd"):
            working_directory(launch, f"--{name}", _written(shown).removeprefix(f"--{name}="))
        elif name not in _OF_CONTAINER:
            launch.notes.append(
                f"the container was told `{texts[position - 1].replace(NUL, '…')}`: see docs/containers.md"
            )
    if position < len(texts):
        launch.settings["container.image"] = _written(launch.words[position])
        launch.settings |= {"container.binds": binds} if binds else {}
    launch.drop(position + 1)


def working_directory(launch: ImportedLaunch, option: str, value: str) -> None:
    """Where a container was told to start its program."""
    if value.rstrip("/") not in tables.HERE:
        shown = value.replace(NUL, "…")
        launch.notes.append(
            f"`{option}` had it start in `{shown}`: ranks start in the folder of serried.toml, or in its `workdir`"
        )


def _written(word: Word) -> str:
    """A path as one would write it into serried.toml, which knows variables."""
    return "".join(piece.text for piece in word)


def conda(launch: ImportedLaunch) -> None:
    flags = {"live-stream", "no-capture-output", "verbose", "v", "dev"}
    given, position = long_options(launch.texts(), 2, flags, {"n": "name", "p": "prefix"})
    launch.drop(position)
    if name := given.get("name") or given.get("prefix"):
        launch.settings["environment.conda"] = name
