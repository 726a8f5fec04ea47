r"""Folders of the host in a container: `/data`, `/host/data:/data`, `/host/data:/data:ro`; `\:` is a literal colon."""

from __future__ import annotations

import re
from typing import List, Sequence

from serried.base import NamedTuple

LOCAL = "$SLURM_TMPDIR"
"""The beginning of a path on the node's own disk, which only the node knows."""
READ_ONLY = "ro"
MODES = (READ_ONLY, "rw")


class Bind(NamedTuple):
    source: str
    destination: str
    is_read_only: bool = False


def split(text: str) -> List[str]:
    return [part.replace("\\:", ":") for part in re.split(r"(?<!\\):", text)]


def make(parts: Sequence[str]) -> Bind:
    """Build a bind from the parts of `split`. Raises ValueError, whose message completes "`/a:b:c:d` …"."""
    mode = parts[-1] if len(parts) > 1 and parts[-1] in MODES else ""
    paths = parts[:-1] if mode else parts
    if len(paths) > 2:
        raise ValueError("has too many colons: write `/source:/destination:ro`, and `\\:` for a colon in a name")
    if not all(path.startswith("/") or is_local(path) for path in paths):
        raise ValueError("must be `/folder` or `/source:/destination`, optionally with `:ro` at the end")
    return Bind(paths[0], paths[-1], mode == READ_ONLY)


def is_local(path: str) -> bool:
    return path == LOCAL or path.startswith(f"{LOCAL}/")


def on_node(bind: Bind, local: str) -> Bind:
    """`bind` on a node whose SLURM_TMPDIR is `local`."""
    source, destination = (
        local + path[len(LOCAL) :] if is_local(path) else path for path in (bind.source, bind.destination)
    )
    return Bind(source, destination, bind.is_read_only)


def parse(text: str) -> Bind:
    return make(split(text))


def spell(bind: Bind) -> str:
    """The text that `parse` reads."""
    places = dict.fromkeys((bind.source, bind.destination))
    return ":".join([*(place.replace(":", "\\:") for place in places), *([READ_ONLY] if bind.is_read_only else [])])


def for_apptainer(bind: Bind) -> List[str]:
    """The option for Apptainer. All versions have `--bind`; only `--mount` can name any path."""
    if not any(character in bind.source + bind.destination for character in ',:"\\\n'):
        same = bind.source == bind.destination and not bind.is_read_only
        mode = f":{READ_ONLY}" if bind.is_read_only else ""
        return ["--bind", bind.source if same else f"{bind.source}:{bind.destination}{mode}"]
    fields = ["type=bind", f"src={bind.source}", f"dst={bind.destination}", *(["ro"] if bind.is_read_only else [])]
    return ["--mount", ",".join('"' + field.replace('"', '""') + '"' for field in fields)]
