"""What there is to choose from here, without choosing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serried.config import layers, sources
from serried.config.definitions import Cluster


@dataclass(frozen=True)
class Entry:
    name: str
    scheduler: str
    origin: str
    """Where it is described: a file, or Serried's own profile."""


@dataclass(frozen=True)
class Catalogue:
    experiments: tuple[str, ...]
    clusters: tuple[Entry, ...]
    here: str
    """The cluster that `serried submit` would use."""
    file: str | None
    """The project's file."""


def catalogue(directory: Path, environ: Mapping[str, str]) -> Catalogue:
    """Experiments and clusters known in a directory. Raises ConfigError for a file that is wrong."""
    files = sources.find(Path(os.path.abspath(directory)), environ)  # noqa: PTH100 - links stay as the user wrote them
    given = layers.gather(files, {}, environ)
    asked = layers.stack(given, None, "").get(("cluster",))
    return Catalogue(
        experiments=tuple(sources.names(given, "experiments")),
        clusters=tuple(_entry(name, given, environ) for name in layers.cluster_names(given)),
        here=asked.value if asked else layers.recognise(given, environ)[0],
        file=files.project.path if files.project else None,
    )


def _entry(name: str, given: list[sources.Layer], environ: Mapping[str, str]) -> Entry:
    settings = layers.stack(layers.with_cluster(given, name, environ, look=False), None, name)
    scheduler = settings.get(("clusters", name, "scheduler"))
    said_by = [setting.origin for place, setting in settings.items() if place[:2] == ("clusters", name)]
    strongest = next((origin.path for origin in reversed(said_by) if origin.path), None)
    return Entry(name, scheduler.value if scheduler else str(Cluster.scheduler), strongest or "shipped with Serried")
