"""The settings: the key, kind, default and help of each, declared once.

Validation, the command line's options, `SERRIED_*` variables, `serried config show` and the configuration's page come
from these tables. `serried.schema.plan` declares the settings that the plan holds. A table with further settings has
the plan's object as a field. So planning copies objects, not values. A field that is None is not set.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from serried import schedulers
from serried.base import NamedTuple
from serried.base.errors import did_you_mean
from serried.config import values
from serried.config.toml import Keys, dotted
from serried.config.values import BadValue, Kind, Typed, guess
from serried.schema.plan import (
    KEYS,
    Container,
    Data,
    Environment,
    Key,
    Launch,
    Limit,
    Notify,
    ReportedMetric,
    ReportSettings,
    Sampling,
    SideCommand,
    Site,
    Sync,
    Track,
    setting,
    settings,
)

INLINED = frozenset({"planned", "site"})
"""Fields that hold a part of the plan whose settings are keys of the table too."""


def keys(table: Any) -> dict[str, Key]:
    """The keys of a table, in the order in which they are documented."""
    return {name: key for name, _, key in _declared(table)}


def values_of(table: Any) -> dict[str, Any]:
    return {name: attrgetter(path)(table) for name, path, _ in _declared(table.__class__)}


def fields_of(table: Any, by_key: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key, as arguments of `table`: those of a part of the plan in an object of that part."""
    arguments = {path: by_key[name] for name, path, _ in _declared(table) if name in by_key and "." not in path}
    parts = {field: type(table._field_defaults[field]) for field in INLINED.intersection(table._fields)}
    return arguments | {field: part(**fields_of(part, by_key)) for field, part in parts.items()}


@functools.cache
def _declared(table: Any) -> tuple[tuple[str, str, Key], ...]:
    """Each key of a table: its name, the path of its field (`site.root`), and its declaration."""
    declared: list[tuple[str, str, Key]] = []
    for field in table._fields:
        if field in INLINED:
            part: Any = type(table._field_defaults[field])
            declared += [(name, f"{field}.{path}", key) for name, path, key in _declared(part)]
        elif key := KEYS[table].get(field):
            name = key.name or field.removesuffix("_seconds").removesuffix("_bytes")
            kind = getattr(values, key.kind) if isinstance(key.kind, str) else key.kind
            declared.append((name, field, key._replace(kind=kind)))
    return tuple(declared)


@settings
class Resources(NamedTuple):
    nodes: int | None = setting(values.COUNT, "Number of nodes.", default="1")
    spare_nodes: int | None = setting(
        values.COUNT_OR_NONE, "Further nodes, which take the place of lost ones.", default="0"
    )
    gpus: int | None = setting(
        values.COUNT_OR_NONE, "GPUs per node.", default="1 on clusters with GPUs; 0 with `ranks` alone"
    )
    gpu_type: str | None = setting(values.TEXT, "Type of GPU, in the cluster's words.", default="any")
    ranks: int | None = setting(values.COUNT, "Ranks (processes) per node.", default="one per GPU, else 1")
    cpus: int | None = setting(values.COUNT, "CPUs per GPU; per rank without GPUs.", default="2")
    mem: int | None = setting(values.MEMORY, "Memory per GPU (per rank without GPUs), or `all`.", default="10G")
    mem_per_node: int | None = setting(values.MEMORY, "Memory per node, instead of `mem`.")
    mem_per_cpu: int | None = setting(values.MEMORY_PART, "Memory per CPU, instead of `mem`.")
    time: int | None = setting(values.DURATION, "Time limit.", default="1h; none on `local`")
    account: str | None = setting(
        values.TEXT, "Account to charge.", default="`SBATCH_ACCOUNT`, else the cluster's choice"
    )
    partition: str | None = setting(
        values.TEXT,
        "Partition. `queue` is another name.",
        default="`SBATCH_PARTITION`, else the cluster's choice",
        alias="queue",
    )
    qos: str | None = setting(values.TEXT, "Quality of service.", default="`SBATCH_QOS`, else the cluster's choice")
    reservation: str | None = setting(values.TEXT, "Reservation.", default="`SBATCH_RESERVATION`, else none")
    constraint: tuple[str, ...] = setting(values.TEXTS, "Features that every node must have.", value=())
    exclusive: bool | None = setting(
        values.BOOLEAN, "Reserve whole nodes, with all their CPUs and memory.", default="false"
    )
    licenses: tuple[str, ...] = setting(values.COMMA_TEXTS, "Licences, `name:count`.", value=())
    comment: str | None = setting(values.TEXT, "Comment for the scheduler's records.")
    mail_user: str | None = setting(values.TEXT, "Address for the scheduler's mail.")
    mail_type: tuple[str, ...] = setting(
        values.COMMA_TEXTS, "Events of the scheduler's mail: `END`, `FAIL`, `ALL` …", value=()
    )
    extra: tuple[str, ...] = setting(values.TEXTS, "Further options of the scheduler.", value=())


@settings
class EnvironmentRequest(NamedTuple):
    venv: str | bool | None = setting(
        values.PLACE,
        "Virtual environment: a folder, a file to build it from, or `true`.",
        default="the active one",
    )
    conda: str | bool | None = setting(
        values.NAMED_PLACE,
        "Conda environment: its name or folder, or a file to build it from, or `true` for `environment.yml`.",
        default="the active one",
    )
    python: str | None = setting(
        values.TEXT, "Python of a virtual environment that Serried builds.", default="`python3` on PATH"
    )
    torch: str | None = setting(
        values.TORCH, "Preferred build of PyTorch in environments that Serried builds.", default="PyPI's"
    )
    planned: Environment = Environment()
    """With the values of the fields above: a folder, a name or a `Build`."""


@settings
class DataRequest(NamedTuple):
    planned: Data = Data()
    root: str = setting(
        values.TEXT,
        "Folder that relative paths in `stage` start from.",
        default="`scratch`/PROJECT, else `data` in the project's folder",
        value="",
    )
    """Absolute once resolved."""
    send: tuple[str, ...] = setting(
        values.SENT,
        "Files and folders of the project that a submit from another machine sends too. See "
        "[data](data.md#small-data-of-your-laptop).",
        value=(),
    )
    prepare: tuple[str, ...] = setting(
        values.COMMAND,
        "Command that creates the data. `submit` runs it once, on this machine, in the project's folder.",
        value=(),
    )


@settings
class Experiment(NamedTuple):
    name: str
    command: tuple[str, ...] = setting(values.COMMAND, "Command of each rank.", value=())
    script: tuple[str, ...] = setting(
        values.COMMAND,
        "Job script to run unmodified instead of a command, with its arguments: `train.sbatch`. See "
        "[job scripts](job-scripts.md).",
        value=(),
    )
    shell: bool = setting(values.BOOLEAN, "Run `command` in bash.", default="false", value=False)
    beside: tuple[SideCommand, ...] = setting(
        values.SIDE_COMMANDS,
        "Commands that run beside the ranks of each node: see [shell](shell.md#commands-beside-the-ranks).",
        value=(),
    )
    seed: int = setting(
        values.COUNT_OR_NONE,
        "Value of `{seed}`. A task of an array adds its index, or the number of its repeat.",
        default="0",
        value=0,
    )
    array: str | None = setting(
        values.ARRAY,
        "Indices of a job array: `0-99`, `0-10:2` or `1,3,5`; with `%8`, at most 8 tasks run at once.",
        default="no array",
    )
    debug: bool = setting(values.BOOLEAN, "Let NCCL and torch.distributed log more.", default="false", value=False)
    workdir: str = setting(
        values.TEXT, "Folder where ranks start, relative to the project.", default="the project's folder", value="."
    )
    ranks_meet: bool = setting(
        values.BOOLEAN,
        "Warn if several ranks never connect to one another; set to false for independent ranks.",
        default="true",
        value=True,
    )
    preflight: bool = setting(
        values.BOOLEAN,
        "Check the job's nodes, and the network between them, before ranks start. A problem ends the attempt.",
        "false",
        value=False,
    )
    after: tuple[str, ...] = setting(
        values.TEXTS,
        "Experiments to wait for: `prepare`, or `prepare:any`. See [time limits](time-limits.md#after-other-runs).",
        value=(),
    )
    cluster: str | None = setting(values.TEXT, "Cluster for `serried submit`.", default="the cluster recognised")
    config: Mapping[str, Any] = setting(
        values.SETTINGS, "Settings of the training: `lr = 0.1`, `model.width = 64`. Merged by name.", value={}
    )
    """By dotted name."""
    resources: Resources = Resources()
    environment: EnvironmentRequest = EnvironmentRequest()
    limit: Limit = Limit()
    notify: Notify = Notify()
    launch: Launch = Launch()
    container: Container = Container()
    data: DataRequest = DataRequest()
    checkpoint: Sync = Sync()
    track: Track = Track()
    metric: ReportedMetric = ReportedMetric()
    sampling: Sampling = Sampling()
    report: ReportSettings = ReportSettings()


@settings
class Project(NamedTuple):
    directory: str
    """Absolute."""
    file: str | None
    """The file that describes the project, or None."""
    name: str = setting(values.NAME, "Name of the project.", default="its folder's name", value="")
    link: tuple[str, ...] = setting(
        values.TEXTS,
        "Entries that the snapshot links instead of copying (`data`), or does not link (`!outputs`).",
        default="top-level entries that git ignores",
        value=(),
    )
    snapshot: bool = setting(
        values.BOOLEAN,
        "Run a copy of the code as of submit; false runs the project itself.",
        default="true",
        value=True,
    )
    share: str = setting(
        Kind("`user` or `group`", values.choice("user", "group")),
        "Readers of a run's files.",
        default="`user`",
        value="user",
    )


_NAMED = " or ".join(", ".join(f"`{name}`" for name in schedulers.NAMES).rsplit(", ", 1))


def _resource_keys(value: Any) -> tuple[str, ...]:
    ignored = values.texts(value)
    for name in ignored:
        if name not in keys(Resources):
            raise BadValue(f"must be keys of `resources`, not `{name}`", did_you_mean(name, keys(Resources)))
    return ignored


@settings
class Partition(NamedTuple):
    time: int | None = setting(values.DURATION, "Longest time limit.")
    nodes: int | None = setting(values.COUNT, "How many nodes a job may have.")
    gpus: int | None = setting(values.COUNT_OR_NONE, "GPUs on each node.")
    total_gpus: int | None = setting(values.COUNT_OR_NONE, "How many GPUs a job may have, on all its nodes.")
    cpus: int | None = setting(values.COUNT, "CPUs on each node.")
    mem: int | None = setting(values.MEMORY_PART, "Memory on each node.")
    jobs: int | None = setting(values.COUNT, "How many jobs of one user may run.")


@settings
class Gpu(NamedTuple):
    """Defaults for jobs with GPUs of one type."""

    cpus: int | None = setting(values.COUNT, "CPUs per GPU, unless the job sets them.")
    mem: int | None = setting(values.MEMORY_PART, "Memory per GPU, unless the job sets it.")


@settings
class Match(NamedTuple):
    hostname: tuple[str, ...] = setting(values.TEXTS, "Patterns (`*`) for the host's name.", value=())
    environ: Mapping[str, str] = setting(values.PATTERNS, "Variables and patterns (`*`) for their values.", value={})


@settings
class Cluster(NamedTuple):
    name: str
    title: str | None = setting(values.TEXT, "A description in one line.")
    login: str | None = setting(
        values.TEXT, "Login node: a host, or an alias of `~/.ssh/config`. Not in a project's file."
    )
    notes: tuple[str, ...] = setting(values.TEXTS, "Further facts for users.", value=())
    retired: bool = setting(values.BOOLEAN, "The cluster is out of service.", "false", value=False)
    scheduler: str = setting(
        Kind(_NAMED, values.choice(*schedulers.NAMES)),
        "The scheduler.",
        default=f"`{schedulers.DEFAULT}`",
        value=schedulers.DEFAULT,
    )
    site: Site = Site()
    modules: tuple[str, ...] = setting(
        values.TEXTS, "Usual modules, for information. `environment.modules` loads modules in jobs.", value=()
    )
    needs_account: bool | None = setting(values.BOOLEAN, "A job must name an account.", default="false")
    accounts: tuple[str, ...] = setting(values.TEXTS, "Patterns of account names: `def-*`.", value=())
    ignores: tuple[str, ...] = setting(
        Kind("list of keys of `resources`", _resource_keys, many=True, show=values.TEXTS.show),
        "Resources that this cluster does not support. Requests omit them, with a note.",
        value=(),
    )
    continues: tuple[str, ...] = setting(
        Kind(
            "list of `requeue`, `successor` and `prequeued`",
            lambda value: tuple(map(values.FORM.parse, values.texts(value))),
            many=True,
            show=values.TEXTS.show,
        ),
        "Allowed values of `limit.continue`. The first is the default.",
        default="all three",
        value=(),
    )
    build: str = setting(
        Kind("`here`, `job` or `gpu-job`", values.choice("here", "job", "gpu-job")),
        "Where to build environments: on this machine, or in a job with its compilers or `nvcc`.",
        default="`here`",
        value="here",
    )
    local_disk_stays: bool | None = setting(
        values.BOOLEAN, "Files that a job leaves on a node's disk stay until they are deleted.", default="false"
    )
    scratch: str = setting(
        values.TEXT,
        "Folder for users' data that compute nodes see. May contain variables.",
        default="`$SCRATCH`, `$PSCRATCH` or `/scratch/$USER`",
        value="",
    )
    gpus_per_node: int | None = setting(
        values.COUNT_OR_NONE, "Largest number of GPUs on a node.", default="queried from the cluster"
    )
    cpus_per_node: int | None = setting(values.COUNT, "Largest number of CPUs on a node.", default="not checked")
    gpu_types: tuple[str, ...] = setting(values.TEXTS, "Types of GPUs.", default="not checked", value=())
    default_partition: str | None = setting(
        values.TEXT, "Partition of jobs that name none.", default="queried from the cluster"
    )
    max_time: int | None = setting(values.DURATION, "Longest time limit of all partitions.", default="not checked")
    match: Match = Match()
    """Its signs."""
    partitions: Mapping[str, Partition] = {}
    knows_partitions: bool = True
    """The list is complete. Profiles in Serried describe some partitions, the scheduler lists all."""
    gpus: Mapping[str, Gpu] = {}
    """By type."""
    sources: Mapping[str, str] = setting(
        Kind("table of texts", values.text, names=True, nested=True),
        "Source of each value of the profile, by key: `resources.cpus`.",
        value={},
    )

    def source(self, key: str) -> str | None:
        """The source of the value at `key` (`resources.cpus`) or of a table around the key, or None."""
        while key and key not in self.sources:
            key = key.rpartition(".")[0]
        return self.sources.get(key)


@settings
class SweepTable(NamedTuple):
    """`serried.sweeps` reads the values: the same keys stand in the files of W&B."""

    experiment: str | None = setting(
        values.TEXT, "The experiment whose command the trials run.", default="the only one"
    )
    method: str | None = setting(
        Kind("`grid`, `random` or `bayes`", values.choice("grid", "random", "bayes")),
        "Try all combinations of values, random ones, or those that Optuna proposes.",
        default="`grid`",
    )
    id: str | None = setting(
        values.TEXT,
        "`ENTITY/PROJECT/ID` of a sweep at W&B, whose agents start the trials. Excludes the keys of its definition.",
    )
    metric: Mapping[str, Any] = setting(
        values.SETTINGS,
        '`name` of the logged value that orders the trials, `goal`: `"minimize"` or `"maximize"`, and `from` if the '
        "program prints the value: `'stdout:val_acc=(\\S+)'`, or writes it: `'file:metrics.json:val_acc'`.",
        value={},
    )
    parameters: Mapping[str, Any] = setting(
        values.SETTINGS,
        "The parameters: `lr.values = [0.1, 0.01]`, `wd = { min = 1e-6, max = 1e-2, distribution = "
        '"log_uniform_values" }`. See [sweeps](sweeps.md).',
        value={},
    )
    early_terminate: Mapping[str, Any] = setting(
        values.SETTINGS,
        'End trials early that are worse than others: `{ type = "hyperband", min_iter = 3 }`, or `type = "median"`.',
        value={},
    )
    run_cap: int | None = setting(
        values.COUNT, "How many random trials to run; for a grid, the limit.", default="the whole grid"
    )
    seeds: int | None = setting(
        values.COUNT, "Trials with the same parameters and other seeds, by the parameter `seed`."
    )
    seed: int | None = setting(
        values.COUNT_OR_NONE, "Seed of the random draws, and the first seed of `seeds`.", default="0"
    )
    parallel: int | None = setting(values.COUNT, "How many trials may run at once.", default="the scheduler's choice")
    workers: int | None = setting(
        values.COUNT,
        "How many jobs may run at once; each runs one trial after another.",
        default="a job for each trial",
    )


PARTS: Mapping[str, type] = {
    "resources": Resources,
    "environment": EnvironmentRequest,
    "limit": Limit,
    "notify": Notify,
    "launch": Launch,
    "container": Container,
    "data": DataRequest,
    "checkpoint": Sync,
    "track": Track,
    "metric": ReportedMetric,
    "sampling": Sampling,
    "report": ReportSettings,
}
"""An experiment's tables. `[defaults]` and `[clusters.NAME]` may have them too, for all runs and all runs there."""


UNSET = object()
"""The value of a setting that removes those of weaker sources."""

EVERY = "*"
"""Stands for any name that the user chooses."""


class Table(NamedTuple):
    keys: Mapping[str, Key] = {}
    tables: Mapping[str, Table] = {}

    def key_named(self, name: str) -> str | None:
        if name in self.keys:
            return name
        return next((key for key, known in self.keys.items() if name == known.alias), None)

    def table(self, name: str) -> Table | None:
        return self.tables.get(name) or self.tables.get(EVERY)

    def names(self) -> list[str]:
        return [*self.keys, *(name for name in self.tables if name != EVERY)]


_PARTS = {name: Table(keys(table)) for name, table in PARTS.items()}
_EXPERIMENT = keys(Experiment)
_OVERLAY = {name: key for name, key in _EXPERIMENT.items() if name != "cluster"}
"""The keys of `on.CLUSTER`: the cluster is chosen by then."""

ROOT = Table(
    tables={
        "project": Table(keys(Project)),
        "defaults": Table(_EXPERIMENT, _PARTS),
        "experiments": Table(
            tables={EVERY: Table(_EXPERIMENT, {**_PARTS, "on": Table(tables={EVERY: Table(_OVERLAY, _PARTS)})})}
        ),
        "sweeps": Table(tables={EVERY: Table(keys(SweepTable))}),
        "clusters": Table(
            tables={
                EVERY: Table(
                    keys(Cluster),
                    {
                        **_PARTS,
                        "match": Table(keys(Match)),
                        "gpus": Table(tables={EVERY: Table(keys(Gpu))}),
                        "partitions": Table(tables={EVERY: Table(keys(Partition))}),
                    },
                )
            }
        ),
    }
)
"""The tables of a file."""

COMMAND_LINE = Table(
    _EXPERIMENT, {**_PARTS, **{name: table for name, table in ROOT.tables.items() if name != "sweeps"}}
)
"""The keys of `--set` and the options: an experiment's keys need no table's name before them."""
PARTS_OF_COMMAND_LINE = {part: table for part, table in COMMAND_LINE.tables.items() if part not in ROOT.tables}


def json_schema(table: Table = ROOT) -> dict[str, Any]:
    """A JSON Schema for editors: keys, their meaning, types and words. `check` knows more."""
    properties = {name: _property(key) for it, key in table.keys.items() for name in (it, key.alias or it)}
    for name, inner in table.tables.items():
        is_part = _PARTS.get(name) is inner
        properties[name] = {"$ref": f"#/definitions/{name}"} if is_part else json_schema(inner)
    schema = {"type": "object", "additionalProperties": properties.pop(EVERY, False), "properties": properties}
    if table is ROOT:
        parts = {name: json_schema(part) for name, part in _PARTS.items()}
        schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": parts}
    return schema


def _property(key: Key) -> dict[str, Any]:
    kind = key.kind
    about = f"{key.help} Value: {kind.name}." + (f" Default: {key.default}." if key.default else "")
    about = re.sub(r"\[([^]]+)\]\(([\w-]+)\.md[^)]*\)", r"\1 (`serried docs \2`)", about)  # as a page links to another
    if kind.names:
        return {"description": about, "type": "object"}
    is_choice = isinstance(kind.parse, values.choice)
    forms = [{"enum": [*kind.parse.words]} if is_choice else {"type": kind.types.split()}]
    if kind.many:
        forms.append({"type": "array", "items": forms[0]})
    if key.is_optional:
        forms.append({"const": ""})
    return {"description": about} | ({"anyOf": forms} if len(forms) > 1 else forms[0])


class WrongKey(Exception):  # noqa: N818 - becomes a ConfigError where the place is known
    def __init__(self, keys: Keys, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.keys = keys
        self.message = message
        self.hint = hint


def check(
    table: Mapping[str, Any], schema: Table = ROOT, where: Keys = (), faults: list[WrongKey] | None = None
) -> Iterator[tuple[Keys, Any]]:
    """Every valid value in `table`, parsed, with its place. Raises WrongKey, or collects all in `faults`."""
    for name, value in table.items():
        try:
            yield from _entry(table, name, value, schema, where, faults)
        except WrongKey as wrong:
            if faults is None:
                raise
            faults.append(wrong)


def _entry(  # noqa: PLR0917 - as `check`
    table: Mapping[str, Any], name: str, value: Any, schema: Table, where: Keys, faults: list[WrongKey] | None
) -> Iterator[tuple[Keys, Any]]:
    place = (*where, name)
    if (key := schema.key_named(name)) is not None:
        if key != name and key in table:
            raise WrongKey(place, f"`{dotted(place)}` and `{key}` are the same setting", "keep one of them")
        yield from _value(schema.keys[key], value, (*where, key))
    elif (inner := schema.table(name)) is not None:
        below = _table(value)
        if not isinstance(below, Mapping):
            raise WrongKey(place, f"`{dotted(place)}` is a table, not a value", f"write `[{dotted(place)}]`")
        yield from check(below, inner, place, faults)
    else:
        raise WrongKey(place, f"unknown key `{dotted(place)}`", _unknown_hint(name, schema, where))


def _table(value: Any) -> Any:
    """A table that was typed: `{A = "1"}`."""
    return guess(value) if isinstance(value, Typed) else value


def _value(key: Key, value: Any, place: Keys) -> Iterator[tuple[Keys, Any]]:
    if not key.kind.names:
        yield place, _parse(key, value, place)
        return
    value = _table(value)
    if isinstance(value, Mapping) and key.kind.nested:
        yield from _nested(key, value, place)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise WrongKey((*place, name), f"`{name}` cannot be the name of an environment variable")
            yield (*place, name), _parse(key, item, (*place, name))
    else:
        raise WrongKey(place, f"`{dotted(place)}` is a table of names and values", f"write `[{dotted(place)}]`")


def _nested(key: Key, table: Mapping[str, Any], where: Keys) -> Iterator[tuple[Keys, Any]]:
    for name, value in table.items():
        place = (*where, name)
        if not name or re.search(r"[.{}=\s]", name):
            hint = f"without quotes: `{'.'.join(place)}`" if re.fullmatch(r"[\w-]+(\.[\w-]+)+", name) else None
            raise WrongKey(place, f"`{dotted(place)}` cannot be the name of a setting", hint)
        if isinstance(value, Mapping):
            yield from _nested(key, value, place)
        else:
            yield place, _parse(key, value, place)


def _parse(key: Key, value: Any, place: Keys) -> Any:
    value = value.read(key.kind) if isinstance(value, Typed) else value
    try:
        return key.kind.parse(value)
    except BadValue as error:
        if key.is_optional and value == "":
            return UNSET
        raise WrongKey(place, f"`{dotted(place)}` {error}", error.hint) from None


KEYS_MEANT = {
    "resources.ranks": "ntasks ntasks-per-node tasks-per-node nproc-per-node nproc np processes world-size",
    "resources.gpus": "gpus-per-node gpus-per-task gres num-gpus ngpus",
    "resources.cpus": "cpus-per-task cpus-per-gpu cpus-per-rank ncpus num-cpus",
    "resources.nodes": "nnodes num-nodes",
    "resources.mem": "memory mem-per-gpu mem-per-rank pmem ram",
    "resources.time": "walltime time-limit timelimit timeout max-time",
    "resources.extra": "options scheduler-options sbatch-options",
    "limit.restarts": "max-restarts retries requeue",
    "limit.warn_before": "signal",
    "environment.env": "envs variables env-vars vars",
    "environment.modules": "module",
    "environment.setup": "pre setup-commands prolog",
    "container.image": "image container sif",
    "data.stage": "dataset input inputs",
    "command": "cmd run exec program",
    "workdir": "chdir cwd directory working-dir",
    "after": "dependency depends-on",
}
"""Words of schedulers and of other tools, by the key for the same thing."""


def _unknown_hint(name: str, schema: Table, where: Keys) -> str:
    words = name.lower().replace("_", "-")
    meant = next((tuple(key.split(".")) for key, others in KEYS_MEANT.items() if words in others.split()), None)
    outer = where[:-1] if where[-1:] and where[-1] in _PARTS else where
    if meant and (len(meant) > 1 or meant[0] in schema.keys):
        is_here = meant[:-1] == where[len(outer) :]
        return f"did you mean `{meant[-1] if is_here else dotted((*outer, *meant))}`?"
    if where[-1:] == ("environment",) and name.isupper():
        return f"did you mean `{dotted((*where, 'env', name))}`?"
    near = did_you_mean(name, schema.names())
    if near:
        return near
    home = next((table for table, part in _PARTS.items() if name in part.keys), None)
    if home and home in schema.tables:
        return f"it belongs in the table `{dotted((*where, home))}`"
    if schema is COMMAND_LINE:
        return f"did you mean `config.{name}`, a setting of your program?"
    return f"known here: {', '.join(f'`{known}`' for known in schema.names())}"
