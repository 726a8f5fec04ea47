"""What an experiment may say of the container that its ranks run in."""

from __future__ import annotations

from dataclasses import dataclass

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import container as kinds


@dataclass(frozen=True)
class Container:
    image: str = key(
        kinds.IMAGE,
        "A file (`.sif`, `.sqfs`) or folder; or what `serried image build` makes one from: a definition "
        "(`.def`), or `docker://…`. From the project's folder. May name variables.",
        default="no container",
        value="",
    )
    requirements: str | None = key(
        values.TEXT, "A file of requirements that `serried image build` installs on top of `image`."
    )
    runtime: str | None = key(
        kinds.RUNTIME,
        "What runs it.",
        default="the first of them that is found here",
    )
    binds: tuple[str, ...] = key(
        kinds.BINDS,
        "What else of the host it sees; `/data` alone is `/data:/data`. May name variables; `$SLURM_TMPDIR` is that "
        "of each node.",
        value=(),
    )
    writable: bool = key(
        values.BOOLEAN,
        "Let ranks write everywhere in it; what they write there is gone when they end (`--writable-tmpfs`).",
        default="false",
        value=False,
    )
    options: tuple[str, ...] = key(
        values.TEXTS, "Further options for the runtime, as they are: `--nvccli`, `--fakeroot`.", value=()
    )
    contained: bool = key(
        values.BOOLEAN,
        "Show it no more of the host than it needs: a home and `/tmp` of its own, and no variables but the job's.",
        default="false",
        value=False,
    )
    local: bool | None = key(
        values.BOOLEAN,
        "Copy an image that is a file to each node's own disk first, once.",
        default="where nodes have a `local_disk`",
    )
