"""Write the settings into their page: `python tools/configuration_page.py docs/reference/configuration.md STUB`.

The text above the marker is written by hand and stays. STUB, `src/serried/config/resource_options.pyi`, has the keys of
`resources` with their types, so that editors know the options of `serried.submit`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import page_links
from serried.config import definitions, values
from serried.schema import plan
from serried.schema.plan import Key

MARKER = "<!-- `make docs` writes the rest of this page from the definitions. -->"

TABLES: tuple[tuple[str, type, str], ...] = (
    ("[project]", definitions.Project, "Settings of the whole project."),
    (
        "[experiments.NAME]",
        definitions.Experiment,
        (
            "An experiment. `[defaults]` may have the same keys and tables; every experiment, and every command after "
            "`--`, inherits them. `[experiments.NAME.on.CLUSTER]` may have them (except `cluster`) for one cluster. "
            "A cluster's table may have the tables below, such as `[clusters.NAME.limit]`, as defaults for its runs."
        ),
    ),
    (
        "[experiments.NAME.resources]",
        definitions.Resources,
        (
            "Requested resources. Counts are per node; CPUs and memory are per GPU, or per rank without GPUs. Each key "
            "has an option: `mem_per_node` is `--mem-per-node`."
        ),
    ),
    (
        "[experiments.NAME.environment]",
        definitions.EnvironmentRequest,
        "The ranks' environment: see [environments](environments.md).",
    ),
    ("[experiments.NAME.limit]", plan.Limit, "Limits and further attempts: see [time limits](time-limits.md)."),
    (
        "[experiments.NAME.notify]",
        plan.Notify,
        "Notifications: see [notifications](watching.md#messages).",
    ),
    ("[experiments.NAME.launch]", plan.Launch, "The launcher: see [launchers](launchers.md)."),
    (
        "[experiments.NAME.container]",
        plan.Container,
        "The ranks' container: see [containers](containers.md).",
    ),
    (
        "[experiments.NAME.data]",
        definitions.DataRequest,
        "Data on the nodes' own disks: see [data](data.md).",
    ),
    (
        "[experiments.NAME.checkpoint]",
        plan.Sync,
        "Checkpoints of programs without `serried.train`: see [data](data.md).",
    ),
    (
        "[experiments.NAME.metric]",
        plan.ReportedMetric,
        "Step and metrics of programs that do not log them: see [efficiency](efficiency.md#progress).",
    ),
    (
        "[experiments.NAME.sampling]",
        plan.Sampling,
        "Measurements while ranks run: see [efficiency](efficiency.md).",
    ),
    ("[experiments.NAME.report]", plan.ReportSettings, "Notes of `serried report`: see [efficiency](efficiency.md)."),
    (
        "[experiments.NAME.track]",
        plan.Track,
        "TensorBoard, wandb and MLflow: see [tracking](tracking.md). `--track MODE` sets `mode`.",
    ),
    (
        "[sweeps.NAME]",
        definitions.SweepTable,
        "A range of settings for `serried sweep NAME`: see [sweeps](sweeps.md).",
    ),
    (
        "[clusters.NAME]",
        definitions.Cluster,
        "A new cluster, or changes to one of `serried clusters`.",
    ),
    (
        "[clusters.NAME.match]",
        definitions.Match,
        "Signs of the cluster; all of them must match. A cluster without signs needs `--cluster NAME`.",
    ),
    (
        "[clusters.NAME.partitions.PARTITION]",
        definitions.Partition,
        (
            "Limits of a partition (queue), so that `submit` can refuse impossible requests. If neither you nor the "
            "site describes partitions, Serried queries the scheduler, at most every five minutes."
        ),
    ),
    ("[clusters.NAME.gpus.TYPE]", definitions.Gpu, "Defaults for jobs with GPUs of this type."),
)


def render() -> str:
    """The generated part of the page."""
    lines = [line for title, table, text in TABLES for line in _section(title, table, text)]
    return "\n".join([*lines, "[All pages](index.md)", ""])


def _section(title: str, table: type, text: str) -> Iterator[str]:
    yield from (f"## `{title}`", "", textwrap.fill(text, 120, break_on_hyphens=False), "")
    for name, key in definitions.keys(table).items():
        yield textwrap.fill(_item(name, key), 120, subsequent_indent="  ", break_on_hyphens=False)
    yield ""


def _item(name: str, key: Key) -> str:
    is_obvious = key.kind is values.BOOLEAN and key.default
    about = [*([] if is_obvious else [key.kind.name]), *([f"default: {key.default}"] if key.default else [])]
    return f"- `{name}` ({'; '.join(about)}): {key.help}"


def update(page: str) -> str:
    """`page` with its generated part renewed. Raises ValueError if the marker is missing."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER}")
    return f"{written}{MARKER}\n\n{page_links.resolved(render(), 'reference')}"


STUB = """\
# `make docs` writes this file from the definitions.
from collections.abc import Sequence
from typing import TypedDict

from typing_extensions import Unpack as Unpack  # `typing` has it since Python 3.11

class ResourceOptions(TypedDict, total=False):
"""
_TYPES = {"string": "str", "integer": "int", "boolean": "bool"}


def stub() -> str:
    resources = definitions.keys(definitions.Resources)
    return STUB + "".join(f"    {name}: {_type(key)}\n" for name, key in resources.items())


def _type(key: Key) -> str:
    types = [_TYPES[word] for word in key.kind.types.split()]
    return " | ".join([*types, *(f"Sequence[{word}]" for word in types if key.kind.many), "None"])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
    Path(sys.argv[2]).write_text(stub(), encoding="utf-8")
