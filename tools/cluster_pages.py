"""Write the known clusters into their page: `python tools/cluster_pages.py docs/clusters/known-clusters.md`.

The text above the marker is written by hand and stays.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_links
from serried import schedulers
from serried.config import layers
from serried.config.definitions import Cluster, Gpu, Partition, keys
from serried.config.layers import Setting
from serried.config.toml import Keys
from serried.schedulers import clusters
from serried.schedulers.interface import Traits

MARKER = "<!-- `make docs` writes the rest of this page from the profiles. -->"


def names() -> list[str]:
    """The clusters of the page, retired ones last: this machine is none of them."""
    others = [name for name in clusters.shipped() if name != clusters.LOCAL]
    return sorted(others, key=lambda name: bool(Profile(name).get("retired")))


class Profile:
    """What a shipped profile says, its scheduler's included."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._settings = layers.stack(layers.with_cluster([], name, {}, look=False), None, name)

    def get(self, key: str) -> Any:
        """A cluster's key, `resources.cpus` and its like, or None."""
        setting = self._at(tuple(key.split(".")))
        return setting.value if setting else None

    def text(self, key: str) -> str:
        """The same as one would write it."""
        return str(keys(Cluster)[key].kind.show(self.get(key)))

    def tables(self, name: str, kind: type) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of its partitions, or of its types of GPU."""
        held: dict[str, dict[str, str]] = {}
        for place, setting in self._settings.items():
            if place[:3] == ("clusters", self.name, name):
                held.setdefault(place[3], {})[place[4]] = keys(kind)[place[4]].kind.show(setting.value)
        columns = [key for key in keys(kind) if any(key in texts for texts in held.values())]
        return columns, [[f"`{row}`", *(texts.get(key, "") for key in columns)] for row, texts in held.items()]

    def match(self) -> Iterator[tuple[str, str]]:
        for place, setting in self._settings.items():
            if place[:3] == ("clusters", self.name, "match"):
                yield from [("", p) for p in setting.value] if place[3] == "hostname" else [(place[4], setting.value)]

    @property
    def title(self) -> str:
        return str(self.get("title") or f"Any other {self.scheduler.title}")

    @property
    def scheduler(self) -> Traits:
        return schedulers.traits(self.get("scheduler"))

    def _at(self, keys: Keys) -> Setting | None:
        return self._settings.get(("clusters", self.name, *keys)) or self._settings.get(keys)


def render() -> str:
    """The generated part of the page."""
    profiles = [Profile(name) for name in names()]
    columns = ["title", "scheduler", "longest job", "GPUs per node"]
    rows = [
        [
            f"[{it.name}](#{it.name})",
            it.title,
            it.scheduler.title,
            it.text("max_time") if it.get("max_time") else "",
            it.text("gpus_per_node") if it.get("gpus_per_node") else "",
        ]
        for it in profiles
    ]
    sections = [line for it in profiles for line in (f"## {it.name}", "", *_section(it), "")]
    return "\n".join([*_table("cluster", columns, rows), "", *sections, "[All pages](index.md)", ""])


def update(page: str) -> str:
    """`page` with its generated part renewed. Raises ValueError if the marker is missing."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER}")
    return f"{written}{MARKER}\n\n{page_links.resolved(render(), 'clusters')}"


def _section(profile: Profile) -> Iterator[str]:
    yield from (f"{profile.title}.", "")
    if login := profile.get("login"):
        yield from (f"    ssh {login}", "")
    for text in _facts(profile):
        yield textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    for first, table, kind in (("partition", "partitions", Partition), ("type of GPU", "gpus", Gpu)):
        columns, rows = profile.tables(table, kind)
        if rows:
            yield from ("", *_table(first, columns, rows))


def _facts(profile: Profile) -> Iterator[str]:
    pages = [f"<{docs}>"] if (docs := profile.get("docs")) else []
    if help_from := [*pages, *filter(None, [profile.get("contact")])]:
        yield f"Help: {', '.join(help_from)}"
    signs = [
        f"`{name}` is `{pattern}`" if name else f"the host's name matches `{pattern}`"
        for name, pattern in profile.match()
    ]
    other = f"Serried uses this profile on any {profile.scheduler.title} that it does not recognise"
    yield f"Signs: {' and '.join(signs)}" if signs else other
    if profile.get("needs_account"):
        yield f"Account: {' or '.join(f'`account = {_quoted(account)}`' for account in accounts(profile))}"
    if modules := profile.get("modules"):
        yield f"Modules: `modules = [{', '.join(map(_quoted, modules))}]`"
    if root := profile.get("root"):
        yield f"Runs: `{root}`"
    if disk := profile.get("local_disk"):
        stays = ", which the site does not clean" if profile.get("local_disk_stays") else ""
        yield f"Disk of a node: `{disk}`{stays}"
    if types := profile.get("gpu_types"):
        yield f"Types of GPU: {', '.join(types)}"
    if ignored := profile.get("ignores"):
        yield f"Ignored: {', '.join(f'`{key}`' for key in ignored)}"
    if place := {"job": "in a job", "gpu-job": "in a job with a GPU"}.get(profile.get("build") or ""):
        yield f"Environments are built {place}"
    if forms := profile.get("continues"):
        yield f"Further attempts: `{forms[0]}`"
    yield from (f"{note[:1].upper()}{note[1:]}" for note in profile.get("notes") or ())


def accounts(profile: Profile) -> list[str]:
    """Examples of accounts."""
    return [pattern.replace("*", "NAME") for pattern in profile.get("accounts") or ("NAME",)]


def _table(first: str, columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join([first, *columns])} |"
    yield "|" + "---|" * (len(columns) + 1)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
