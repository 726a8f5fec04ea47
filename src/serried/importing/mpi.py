"""`mpirun` of a script, in any of its dialects: how many ranks it starts where, and what it was told beyond that."""

from __future__ import annotations

import re

from serried.importing.counts import Started
from serried.importing.launch import NUL, ImportedLaunch, exported

NAMES = {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun"}
_TOTAL = {"np", "n", "c"}
_PER_NODE = {"ppn", "npernode", "perhost", "N"}
_EXPORTS = {"x": 1, "genv": 2, "env": 2}
_PARAMETERS = {"mca": 2, "pmca": 2, "prtemca": 2}
_PLACES = {"map-by", "rank-by", "ranks-by"}
_BINDING = {
    *_PLACES, "bind-to", "binding", "cpus-per-rank", "cpus-per-proc", "cpu-set", "cpu-list", "slot-list",
}  # fmt: skip
_BINDING_FLAGS = {
    "bynode", "byslot", "bycore", "bysocket", "bind-to-none", "bind-to-core", "bind-to-socket", "use-hwthread-cpus",
}  # fmt: skip
_NEEDLESS = {
    "host", "H", "hosts", "hostfile", "machinefile", "machine", "f", "default-hostfile", "bootstrap", "launcher", "rmk",
    "launcher-exec", "bootstrap-exec", "genvlist", "envlist", "display", "d",
}  # fmt: skip
"""Where the ranks run is the scheduler's word, and they inherit what there is."""
_NEEDLESS_FLAGS = {
    "oversubscribe", "nooversubscribe", "allow-run-as-root", "tag-output", "report-bindings", "l", "v", "verbose", "q",
    "quiet", "genvall", "envall", "genvnone", "envnone", "display-map", "display-allocation", "pernode",
}  # fmt: skip
_AS_HERE = re.compile(r"(slot|core|hwthread)?(:(no)?oversubscribe)?", re.IGNORECASE)
"""Node after node, as Serried fills them."""


def mpirun(launch: ImportedLaunch) -> None:
    texts = launch.texts()
    position, total, per_node = 1, None, None
    bound: list[str] = []
    beyond: list[str] = []
    while position < len(texts) and texts[position].startswith("-"):
        name, equals, value = texts[position].lstrip("-").partition("=")
        follow = 0 if equals else _follow(name)
        words = texts[position : position + 1 + follow]
        value = value if equals else words[1] if len(words) > 1 else ""
        per_chunk = re.match(r"ppr:(\d+):node", value) if name in _PLACES else None
        if name in _TOTAL:
            total = launch.number(words[0], value)
        elif name in _PER_NODE:
            per_node = launch.number(words[0], value)
        elif name == "pernode":
            per_node = 1
        elif name == "mca":
            launch.options += ["--mca", *words[1:]]
        elif name in _EXPORTS:
            exported(launch, value, launch.words[position + 2 : position + 3] if follow == 2 else [])
        elif per_chunk:
            per_node = int(per_chunk[1])
            bound += [" ".join(words)] if value[per_chunk.end() :] else []
        elif name in _BINDING | _BINDING_FLAGS:
            is_so_here = name == "byslot" or (name in _PLACES and _AS_HERE.fullmatch(value))
            bound += [] if is_so_here else [" ".join(words)]
        elif name not in _NEEDLESS | _NEEDLESS_FLAGS:
            beyond.append(" ".join(words))
        position += 1 + follow
    launch.drop(position)
    launch.by.append("mpirun")
    launch.started.append(Started(ranks=per_node, total=total))
    launch.settings |= {"launch.kind": "mpirun", "launch.options": launch.options}
    launch.options = []
    _note(launch, bound, "Serried fills node after node, and binds each rank to its share of the node's CPUs")
    _note(launch, beyond, "what is still wanted goes into `launch.options`")


def _follow(name: str) -> int:
    """How many words an option takes."""
    if name in _NEEDLESS_FLAGS | _BINDING_FLAGS:
        return 0
    return {**_EXPORTS, **_PARAMETERS}.get(name, 1)


def _note(launch: ImportedLaunch, options: list[str], why: str) -> None:
    if options:
        listed = ", ".join(f"`{option.replace(NUL, '…')}`" for option in options)
        launch.notes.append(f"mpirun was told {listed}: {why}")
