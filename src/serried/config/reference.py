"""The configuration's page, made from the definitions: `python -m serried.config.reference docs/configuration.md`.

What a person wrote stays: all above the marker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from serried.config import definitions
from serried.config.definitions import Key

MARKER = "<!-- Below this line: made from the definitions by `make docs`. -->"

TABLES: tuple[tuple[str, type, str], ...] = (
    ("[project]", definitions.Project, "What is true of the whole folder."),
    (
        "[experiments.NAME]",
        definitions.Experiment,
        (
            "What to run. The same keys, and the tables below, may stand in `[defaults]`, which every experiment and "
            "every command after `--` inherits, and in `[experiments.NAME.on.CLUSTER]` (but for `cluster`), which "
            "holds on that cluster alone. The tables may also stand in a cluster's, `[clusters.NAME.limit]` say, as "
            "defaults for all that runs there."
        ),
    ),
    (
        "[experiments.NAME.resources]",
        definitions.Resources,
        (
            "What it needs. Counts are per node; CPUs and memory are per GPU, or per rank where no GPUs are asked for. "
            "Each key has a flag: `mem_per_node` is `--mem-per-node`."
        ),
    ),
    (
        "[experiments.NAME.environment]",
        definitions.Environment,
        "What the ranks find, and what they inherit: see [environments](environments.md).",
    ),
    ("[experiments.NAME.limit]", definitions.Limit, "How it ends, and goes on."),
    (
        "[experiments.NAME.notify]",
        definitions.Notify,
        "Whom to tell of its beginning and its end: see [notices](notify.md).",
    ),
    ("[experiments.NAME.launch]", definitions.Launch, "What starts its ranks."),
    (
        "[experiments.NAME.container]",
        definitions.Container,
        "The container that ranks run in: see [containers](containers.md).",
    ),
    (
        "[experiments.NAME.data]",
        definitions.Data,
        "What comes to the nodes' own disks, and what goes back: see [data](data.md).",
    ),
    (
        "[experiments.NAME.checkpoint]",
        definitions.Checkpoint,
        "Checkpoints that are not `serried.train`'s own: see [data](data.md).",
    ),
    (
        "[clusters.NAME]",
        definitions.Cluster,
        "A cluster: a new one, or changes to one that Serried knows (`serried clusters`).",
    ),
    (
        "[clusters.NAME.match]",
        definitions.Match,
        "How the cluster is recognised: all that is given must hold. Without it, `--cluster NAME` chooses it.",
    ),
    (
        "[clusters.NAME.partitions.PARTITION]",
        definitions.Partition,
        (
            "What is known of a partition (a queue), so that an impossible request is refused at once. Where "
            "users and site describe none, the scheduler is asked, at most every five minutes."
        ),
    ),
    ("[clusters.NAME.gpus.TYPE]", definitions.Gpu, "A rule of thumb for jobs that ask for GPUs of this type."),
)


def render() -> str:
    """The page's part that is made."""
    return "\n".join(line for title, table, text in TABLES for line in _section(title, table, text))


def _section(title: str, table: type, text: str) -> Iterator[str]:
    yield from (f"## `{title}`", "", text, "", "| key | value | default | meaning |", "|---|---|---|---|")
    for name, key in definitions.keys(table).items():
        yield _row(name, key)
    yield ""


def _row(name: str, key: Key) -> str:
    cells = (f"`{name}`", key.kind.name, key.default or "", key.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def update(page: str) -> str:
    """`page` with its made part made again. Raises ValueError where the marker is missing."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER}")
    return f"{written}{MARKER}\n\n{render()}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
