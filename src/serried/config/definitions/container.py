"""The settings of the ranks' container."""

from __future__ import annotations

from dataclasses import dataclass

from serried.config import values
from serried.config.definitions.key import key
from serried.config.values import container as kinds


@dataclass(frozen=True)
class Container:
    image: str = key(
        kinds.IMAGE,
        "Image file or folder, definition (`.def`) or `docker://…`, relative to the project. May contain variables.",
        default="no container",
        value="",
    )
    requirements: str | None = key(
        values.TEXT, "A file of requirements that `serried image build` installs on top of `image`."
    )
    runtime: str | None = key(
        kinds.RUNTIME,
        "Container runtime.",
        default="the first one that is installed",
    )
    binds: tuple[str, ...] = key(
        kinds.BINDS,
        "Host paths to mount; `/data` means `/data:/data`. May contain variables, also of the node (`$SLURM_TMPDIR`).",
        value=(),
    )
    writable: bool = key(
        values.BOOLEAN,
        "Let ranks write to the whole container. The changes are lost at the end (`--writable-tmpfs`).",
        default="false",
        value=False,
    )
    options: tuple[str, ...] = key(values.TEXTS, "Further options of the runtime: `--nvccli`, `--fakeroot`.", value=())
    contained: bool = key(
        values.BOOLEAN,
        "Hide the host: a separate home and `/tmp`, and only the job's variables.",
        default="false",
        value=False,
    )
    local: bool | None = key(
        values.BOOLEAN,
        "Copy an image file to each node's own disk first, once.",
        default="true with a `local_disk`",
    )
