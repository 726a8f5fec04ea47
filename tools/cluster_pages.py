"""Write the page of each shipped profile: `python tools/cluster_pages.py docs/clusters/known`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.config import layers
from serried.config.definitions import Cluster, Gpu, Partition, keys
from serried.config.layers import Setting
from serried.config.toml import Keys
from serried.schedulers import clusters
from serried.schedulers.interface import Traits

FORMS = {
    "requeue": "the job runs again",
    "successor": "each job submits the next as it starts",
    "prequeued": "all jobs are submitted at once, each waiting for the one before",
}


def names() -> list[str]:
    """The clusters that have a page: this machine has none."""
    return [name for name in clusters.shipped() if name != clusters.LOCAL]


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


def page(name: str) -> str:
    profile = Profile(name)
    parts = [
        [f"# {profile.title}", ""],
        [f"`make docs` generates this page from the [profile](../../../src/serried/schedulers/clusters/{name}.toml)."],
        [f"`serried clusters show {name}` prints the source of each value."],
        ["[Clusters](../clusters.md) explains profiles.", ""],
        *([f"## {heading}", "", text, ""] for heading, section in SECTIONS if (text := _text(section(profile)))),
    ]
    return "\n".join([*(line for part in parts for line in part), "[All pages](../../index.md)", ""])


def _text(lines: Iterator[str]) -> str:
    return "\n".join(map(_wrapped, lines)).strip("\n")


def _wrapped(text: str) -> str:
    if "\n" in text or text.startswith(("|", " ")):
        return text
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _log_in(profile: Profile) -> Iterator[str]:
    login = profile.get("login")
    yield f"    ssh {login}" if login else "Log in as the site describes."
    yield ""
    if docs := profile.get("docs"):
        yield f"Documentation: <{docs}>."
    if contact := profile.get("contact"):
        yield f"Help: {contact}."
    matches = profile.match()
    signs = [
        f"`{name}` is `{pattern}`" if name else f"the host's name matches `{pattern}`" for name, pattern in matches
    ]
    if signs:
        yield f"Serried recognises the cluster if {' and '.join(signs)}."
        yield f"Elsewhere, use `--cluster {profile.name}`."
    else:
        commands = f"{profile.scheduler.title}'s commands"
        yield f"Serried uses this profile if it recognises no other and {commands} are installed."


def _install(profile: Profile) -> Iterator[str]:
    yield "    python3 -m venv ~/venvs/serried && . ~/venvs/serried/bin/activate      # Python 3.11 or later"
    yield "    pip install .                                                          # in a clone of Serried"
    yield f"    serried clusters check {profile.name}"
    yield ""
    yield f"The last command compares the profile with {profile.scheduler.title}."


def _modules(profile: Profile) -> Iterator[str]:
    modules = profile.get("modules")
    if modules:
        listed = ", ".join(f"`{module}`" for module in modules)
        yield f"Usual modules are {listed}. Name those that a job should load:"
        yield ""
        yield "```toml"
        yield "[experiments.train.environment]"
        yield f"modules = [{', '.join(_quoted(module) for module in modules)}]"
        yield "```"
        yield ""
    else:
        yield "`module avail` lists the modules. Name those that a job should load in `modules` of"
        yield "[`[experiments.NAME.environment]`](../../guides/environments.md)."
    where = {"job": "in a job", "gpu-job": "in a job with a GPU"}.get(profile.get("build") or "here")
    if where:
        yield f"Serried builds environments {where}."


def _scratch(profile: Profile) -> Iterator[str]:
    root = profile.get("root")
    if root:
        yield f"Runs go to `{root}`."
    else:
        yield "Runs go to `$SCRATCH/serried` if that is set, and else below your home, with a warning."
        yield "To choose another folder:"
        yield ""
        yield "```toml"
        yield f"[clusters.{profile.name}]       # in ~/.config/serried/config.toml"
        yield 'root = "/scratch/me/serried"'
        yield "```"
    if disk := profile.get("local_disk"):
        stays = profile.get("local_disk_stays")
        yield ""
        yield f"Each node has a disk of its own, `{disk}`" + (
            ". The site does not clean it; Serried [deletes the files of its jobs](../../guides/clean-up.md)."
            if stays
            else "."
        )


def _limits(profile: Profile) -> Iterator[str]:
    columns, rows = profile.tables("partitions", Partition)
    if rows:
        yield from _table("partition", columns, rows)
        yield ""
    facts = [
        (f"No job is longer than {profile.text('max_time')}." if profile.get("max_time") else ""),
        (f"A node has {profile.get('gpus_per_node')} GPUs." if profile.get("gpus_per_node") else ""),
        (f"Types of GPU: {profile.text('gpu_types')}." if profile.get("gpu_types") else ""),
    ]
    yield from filter(None, facts)
    limits = "other limits" if rows or any(facts) else "all limits"
    yield f"Serried asks {profile.scheduler.survey} for {limits} when you submit."
    columns, rows = profile.tables("gpus", Gpu)
    if rows:
        yield ""
        yield "The default for each GPU:"
        yield ""
        yield from _table("type", columns, rows)
    yield ""
    yield "Serried refuses a request beyond a limit at once, and suggests another."


def _first_job(profile: Profile) -> Iterator[str]:
    yield "```toml"
    yield from experiment(profile)
    yield "```"
    yield ""
    yield "    serried submit train --dry-run     check first"
    yield "    serried submit train"
    yield "    serried logs last -f"
    yield ""
    if profile.get("needs_account"):
        patterns = " or ".join(f"`{pattern}`" for pattern in profile.get("accounts") or ())
        like = f" (it looks like {patterns})" if patterns else ""
        yield f"Jobs must name an account{like}. Replace the one above by yours."
    if ignored := profile.get("ignores"):
        listed = ", ".join(f"`{key}`" for key in ignored)
        yield f"Ignored on this cluster, so that one file serves others too: {listed}."


def experiment(profile: Profile) -> Iterator[str]:
    """A first `serried.toml`."""
    yield "# serried.toml"
    yield "[experiments.train]"
    yield 'command = "python train.py"'
    yield ""
    yield "[experiments.train.resources]"
    yield f"gpus = {min(profile.get('gpus_per_node') or 1, 2)}"
    yield 'time = "30m"'
    if profile.get("needs_account"):
        patterns = profile.get("accounts") or ("mine",)
        yield f"account = {_quoted(patterns[0].replace('*', 'NAME'))}"


def _continue(profile: Profile) -> Iterator[str]:
    forms = profile.get("continues")
    first = forms[0] if forms else "requeue"
    yield "    serried submit train --chain 4         four jobs, each from the checkpoint of the one before"
    yield ""
    yield f"Here {FORMS[first]} (`{first}`)."
    yield "See [time limits](../../guides/time-limits.md)."


def _notes(profile: Profile) -> Iterator[str]:
    yield from (f"- {note[:1].upper()}{note[1:]}." for note in profile.get("notes") or ())


SECTIONS = (
    ("Log in", _log_in),
    ("Install", _install),
    ("Modules and environments", _modules),
    ("Scratch", _scratch),
    ("Queues and limits", _limits),
    ("A first job", _first_job),
    ("Longer than the time limit", _continue),
    ("Notes", _notes),
)


def _table(first: str, columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join([first, *columns])} |"
    yield "|" + "---|" * (len(columns) + 1)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _quoted(text: str) -> str:
    return f'"{text}"'


def listed() -> list[str]:
    """The rows of the table of profiles in `docs/clusters/clusters.md`."""
    return [f"| `{name}` | {Profile(name).title} | [{name}](known/{name}.md) |" for name in names()]


def update(overview: str) -> str:
    """That page with its rows made again."""
    lines = overview.split("\n")
    kept = [line for line in lines if not (line.startswith("| `") and "](known/" in line)]
    at = next(at for at, line in enumerate(kept) if line.startswith(f"| `{clusters.LOCAL}` |"))
    return "\n".join([*kept[:at], *listed(), *kept[at:]])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name in names():
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    overview = folder.parent / "clusters.md"
    overview.write_text(update(overview.read_text(encoding="utf-8")), encoding="utf-8")
