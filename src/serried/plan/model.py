"""The plan: one experiment on one cluster with nothing left to decide. Its parts, and its JSON.

The script, the agent and every reader of runs take what they need from here.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from serried.protocol import SCHEMA, names
from serried.protocol.layout import RunDirectory, run_directory
from serried.protocol.successor_commands import part_of, token_of, tokens_of


class Setting(NamedTuple):
    """What users may say of a field: the field is declared here once, for the configuration and for the plan."""

    kind: str
    """The name in `config.values` of what reads and shows it."""
    help: str
    default: str | None = None
    """What holds where it is not set, in words for the reader."""
    key: str = ""
    """Its key in a file, where that is not the field's name."""
    old: str | None = None
    """The key's former name: still read, with a note."""


ALL = 0
"""Memory: all that a node has."""


class Allocation(NamedTuple):
    """One Slurm task per node owns everything on that node."""

    nodes: int
    ranks: int
    """Ranks per node."""
    gpus: int
    """GPUs per node; 0 on CPU clusters."""
    cpus: int
    """CPUs per node."""
    memory_mb: int | None
    """Memory per node in MiB; 0 is all of it; None leaves it to the cluster."""
    time_seconds: int | None
    """Walltime limit; None is no limit of ours."""
    gpu_type: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: tuple[str, ...] = ()
    """Every one must hold: joined by `&`."""
    licenses: tuple[str, ...] = ()
    exclusive: bool = False
    comment: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Options for the scheduler's submit command, as they are."""


class Build(NamedTuple):
    """An environment that Serried builds, and keeps as what it is built from says."""

    kind: str
    """`venv` or `conda`."""
    source: str = ""
    """The file that says what is in it, absolute; empty for what is found in the project."""
    python: str | None = None
    torch: str | None = None
    where: str = "here"
    """`here`, `job` or `gpu-job`."""


class Environment(NamedTuple):
    """What ranks find and inherit. Values of secrets are never here, only their names."""

    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    env_file: tuple[str, ...] = ()
    """Names that the env_file defines; their values travel like secrets."""
    inherit: str | tuple[str, ...] = "all"
    """`all`, `none`, or the names to take from the submitting shell."""
    env_file_path: str | None = None
    """Absolute."""
    venv: str | None = None
    """The virtual environment's folder, absolute; None is whatever is inherited."""
    conda: str | None = None
    """The conda environment's; a name until it is looked for."""
    build: Build | None = None
    """Where `venv` or `conda` come from, if Serried builds them; they are None until that is done."""
    modules: tuple[str, ...] = ()
    module_purge: bool = False
    setup: str = ""
    """Lines of bash that each node's agent runs before it starts ranks."""
    check: str | None = None
    """Python that has to run in it before the run is submitted; None only makes it active, "" does not try it."""


class Container(NamedTuple):
    """What ranks run in; the agents stay outside, but for pyxis."""

    image: Annotated[
        str,
        Setting(
            "IMAGE",
            "Image file or folder, definition (`.def`) or `docker://…`, relative to the project. May contain "
            "variables.",
            "no container",
        ),
    ] = ""
    """Once resolved, a file or a folder is absolute."""
    runtime: Annotated[str, Setting("RUNTIME", "Container runtime.", "the first one that is installed")] = ""
    binds: Annotated[
        tuple[str, ...],
        Setting(
            "BINDS",
            "Host paths to mount; `/data` means `/data:/data`. May contain variables, also of the node "
            "(`$SLURM_TMPDIR`).",
        ),
    ] = ()
    """As protocol.binds reads them: absolute, or on the node's own disk."""
    writable: Annotated[
        bool,
        Setting(
            "BOOLEAN",
            "Let ranks write to the whole container. The changes are lost at the end (`--writable-tmpfs`).",
            "false",
        ),
    ] = False
    options: Annotated[
        tuple[str, ...],
        Setting("TEXTS", "Further options of the runtime: `--nvccli`, `--fakeroot`."),
    ] = ()
    contained: Annotated[
        bool,
        Setting("BOOLEAN", "Hide the host: a separate home and `/tmp`, and only the job's variables.", "false"),
    ] = False
    local: Annotated[
        bool | None,
        Setting("BOOLEAN", "Copy an image file to each node's own disk first, once.", "true with a `local_disk`"),
    ] = None
    requirements: Annotated[
        str, Setting("TEXT", "A file of requirements that `serried image build` installs on top of `image`.")
    ] = ""
    made_from: str = ""
    """What Serried made the image from."""


class Limit(NamedTuple):
    lead_seconds: Annotated[
        int,
        Setting(
            "DURATION",
            "Time between the stop notice and the time limit; at most a quarter of the limit.",
            "60s",
            key="warn_before",
            old="lead",
        ),
    ] = 60
    grace_seconds: Annotated[int, Setting("DURATION", "Time between TERM and KILL.", "30s", key="grace")] = 30
    silence_seconds: Annotated[
        int | None,
        Setting("DURATION_OR_OFF", "Fail if no rank prints for this time.", "off", key="output_timeout", old="silence"),
    ] = None
    restarts: Annotated[int, Setting("COUNT_OR_NONE", "Most further attempts.", "0")] = 0
    """In a plan those that `total_time` needs are among them."""
    total_seconds: Annotated[
        int | None,
        Setting(
            "DURATION_OR_OFF",
            "Time of the whole training: as many attempts as that takes, and `restarts` more. See [chains](chains.md).",
            "off",
            key="total_time",
        ),
    ] = None
    form: Annotated[
        str,
        Setting(
            "FORM",
            "Way to the next attempt: see [continuing](continuing.md).",
            "the cluster's, else `requeue`",
            key="continue",
        ),
    ] = names.REQUEUE
    notify: Annotated[
        str | None, Setting("SIGNAL", "Signal that asks ranks to save and exit: `USR1`, `TERM` …", "off")
    ] = None


class Launch(NamedTuple):
    """What starts the ranks. A kind in `agent/launchers/kinds.py` starts them through `agent rank`."""

    kind: Annotated[
        str,
        Setting(
            "LAUNCHER",
            "Launcher of the ranks: see [launchers](launchers.md).",
            "`agent`; `single` for one rank without a GPU",
        ),
    ] = ""
    """Never empty in a plan."""
    max_restarts: Annotated[
        int, Setting("COUNT_OR_NONE", "How often torchrun restarts failed ranks within one attempt.", "0")
    ] = 0
    options: Annotated[
        tuple[str, ...],
        Setting("TEXTS", "Further options of the launcher, with `{nodes}`, `{ranks}`, `{gpus}` and `{world_size}`."),
    ] = ()
    tf_config: Annotated[bool, Setting("BOOLEAN", "Set TensorFlow's `TF_CONFIG` on each rank.", "false")] = False


class Source(NamedTuple):
    """What code the ranks run."""

    directory: str
    """The project's folder on the submitting side, absolute."""
    workdir: str = "."
    """Where ranks start, relative to the project's folder."""
    snapshot: bool = True
    """False: run in `directory` itself."""
    archive: str | None = None
    """Path of the tar to unpack."""
    tree_per_task: bool = False
    """Each task of an array unpacks a working tree of its own; else all share one."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


class Array(NamedTuple):
    indices: tuple[int, ...]
    parallel: int | None = None
    """How many tasks may run at once; None leaves it to the scheduler."""
    each: bool = False
    """True: task I runs line I of commands.json; False: all run the plan's command."""
    repeat: int | None = None
    """How many tasks in a row are repeats of one command, each with the next seed; None for no repeats."""
    offsets: tuple[int, ...] = ()
    """One for each job that the array is submitted as, where one job cannot hold it: what that job adds to the
    scheduler's own indices, which begin at 0. Empty: one job, whose indices are the tasks."""


class Notify(NamedTuple):
    command: Annotated[
        tuple[str, ...],
        Setting(
            "COMMAND", "Command to run without a shell: a list of words, or text that is split like a shell command."
        ),
    ] = ()
    webhook: Annotated[str | None, Setting("WEBHOOK", "Name of the secret variable with the webhook's address.")] = None
    on: Annotated[
        tuple[str, ...],
        Setting("EVENTS", "Events: `start`, `finish`, `fail`, `stall`.", "`finish` and `fail`"),
    ] = ("finish", "fail")


class After(NamedTuple):
    """A run, or a task of one, that this one comes after."""

    run: str
    name: str
    directory: str
    """Its run directory, absolute."""
    condition: str = names.AFTER_OK
    """How it has to end: `ok`, `any` or `notok`."""
    task: int | None = None
    job: str | None = None
    """Its first job; of an array in parts all of them, with commas. None where it had ended as it should before this
    one was submitted."""

    def __str__(self) -> str:
        """`k3f9q2`, `k3f9q2/17:any`."""
        task = "" if self.task is None else f"/{self.task}"
        condition = "" if self.condition == names.AFTER_OK else f":{self.condition}"
        return f"{self.run}{task}{condition}"


class Resume(NamedTuple):
    """What a run begins from, where it has no checkpoint of its own yet."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each task of the array in its order, or one for all; empty for one without."""
    run: str | None = None
    """The run, or the task (`k3f9q2/17`), whose they are."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each task from its own"
        path = self.checkpoints[0]
        return f"{self.run}, {path.rpartition('/')[2]}" if self.run else path


class Staged(NamedTuple):
    """Something that each node copies to its own disk before ranks start."""

    source: str
    """Absolute."""
    to: str
    """Where ranks find it in their data folder, relative to that."""
    unpack: str = ""
    """The kind of archive that is unpacked to a folder there: `tar`, `tar.gz`, `tar.zst`, `zip` or `squashfs`."""
    bytes: int | None = None
    """As it was counted at submit; None where that took too long."""
    files: int | None = None


class Data(NamedTuple):
    """What goes to the nodes, and what comes back."""

    stage: tuple[Staged, ...] = ()
    in_place: tuple[str, ...] = ()
    """Paths that each node must see."""
    results: tuple[str, ...] = ()
    """Patterns below the results folder, which is on the node's own disk then."""
    results_every_seconds: int = 300
    verify: str = "times"
    """`times` or `hashes`."""


class Sync(NamedTuple):
    """Checkpoints that a program writes by itself, which agents bring to the run's own."""

    watch: Annotated[
        tuple[str, ...],
        Setting(
            "WATCHED",
            "Patterns of checkpoints that the program writes; complete ones are copied while it runs.",
        ),
    ] = ()
    every_seconds: Annotated[
        int, Setting("DURATION", "Interval between two searches for new checkpoints.", "30s", key="sync_every")
    ] = 30
    keep: Annotated[int, Setting("COUNT", "Number of copied checkpoints that stay.", "3")] = 3
    bandwidth: Annotated[int | None, Setting("BYTES", "Most data copied per second while ranks run.", "no limit")] = (
        None
    )
    """Bytes in a second."""
    keep_local: Annotated[
        int | None,
        Setting(
            "COUNT",
            "Number of checkpoints that stay on the node's disk. Older ones are deleted once copied or superseded.",
            "all",
        ),
    ] = None


class Dialect(NamedTuple):
    """How the scheduler writes its jobs and answers about them, for agents that know no scheduler."""

    task: tuple[str, str] = ("", "")
    """A pattern, and what replaces it in the id of an array job to name one of its tasks; `{}` is the index."""
    awaited: tuple[str, str] = ("", "")
    """The same for a job that another is to come after."""
    state_query: str = ""
    """Bash that prints the state of the job `$1` as one word: nothing for an unknown job, a status other than 0 where
    nobody answers. Empty: nothing remains of its jobs when their agents have ended."""
    job_variables: tuple[str, ...] = ()
    """What it sets in job.sh alone, the job's id first."""
    index_variable: str = ""
    """Where programs look for the index of their task, if it is not set in every process of the job."""
    task_prefix: str = ""
    """How variables begin that it sets for each process that it starts."""


class Site(NamedTuple):
    """What the script and the agent must know about the cluster."""

    name: str
    scheduler: str
    root: str
    """Where run directories go, absolute."""
    python: str | None = None
    """Runs the agent on compute nodes; None looks for python3 there."""
    gpu_option: str = "gres"
    """`gres` or `gpus-per-node`."""
    kill_wait_seconds: int = 30
    """Between the scheduler's TERM and its KILL."""
    local_disk: str | None = None
    """Node-local scratch; may name environment variables of the node."""
    local_disk_bytes: int | None = None
    """How much a job may put there."""
    local_disk_files: int | None = None
    cache_bytes: int = 0
    """How much staged data may stay there between jobs."""
    transfer: str = "chain"
    """How staged data comes to several nodes: `chain`, or `each` reads the source."""
    gpu_resource: str = "gpu_type"
    """What PBS calls the type of a GPU."""
    hides_gpus: bool = False
    """Whether PBS lets a job see none but its own GPUs."""
    inside: str = ""
    """The scheduler in whose job it runs, where `serried run` was typed in one; `scheduler` is this machine's then."""
    node_option: str = "select"
    """How nodes are asked of PBS: `select` or `nodes`."""
    launcher: str = ""
    """What starts an agent on each node of a PBS job, where not `pbsdsh`: a name of ours or words of bash."""
    contact: str | None = None
    """Whom to ask about the cluster."""
    docs: str | None = None
    """Where its documentation is."""
    private: str = ""
    """Where a job's environment goes instead of the run directory; absolute."""
    is_this_machine: bool = False
    """Whether its jobs share this machine with its user, outside of any scheduler."""
    dialect: Dialect = Dialect()


def whom_to_ask(contact: str | None, docs: str | None) -> str | None:
    """`ask help@site, or see https://…`, as far as the profile knows."""
    ways = [f"ask {contact}" if contact else "", f"see {docs}" if docs else ""]
    return ", or ".join(way for way in ways if way) or None


@dataclass(frozen=True)
class Plan:
    run: str
    """The run's id."""
    name: str
    """What the user calls it: --name, else the experiment's."""
    project: str
    experiment: str
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    """The program and its arguments, placeholders unfilled; with `shell` one task, a line for bash."""
    site: Site
    allocation: Allocation
    source: Source
    shell: bool = False
    seed: int = 0
    debug: bool = False
    """Ranks get the switches that let NCCL and torch.distributed say what they do."""
    ranks_meet: bool = True
    """False: ranks are independent programs, and no warning is due when none connects to another."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the training is told, by dotted name; `serried.train.config` and `{config.NAME}` have it."""
    environment: Environment = field(default_factory=Environment)
    container: Container | None = None
    data: Data | None = None
    sync: Sync | None = None
    limit: Limit = field(default_factory=Limit)
    launch: Launch = Launch("agent")  # noqa: RUF009 - it never changes
    notify: Notify | None = None
    array: Array | None = None
    resume: Resume | None = None
    after: tuple[After, ...] = ()
    """Runs that must have ended, each as it says, before this one begins."""
    smoke: int = 0
    """A smoke test: after how many steps a training saves, loads and leaves; 0 is none."""
    rerun_of: str | None = None
    """The run, or the task, whose plan this is too."""
    defaults: tuple[str, ...] = ()
    """Keys (`resources.cpus`) that nobody set: Serried's or the cluster's defaults."""
    share: str = "user"
    """`user` (0700/0600) or `group` (0750/0640)."""
    schema: int = SCHEMA

    @property
    def directory(self) -> str:
        """The run directory, absolute."""
        return run_directory(self.site.root, self.project, self.experiment, self.run)

    @property
    def private(self) -> str:
        """Where a job's environment goes that the scheduler would show to everybody; absolute."""
        return self.site.private or str(RunDirectory(Path(self.directory)).private)

    @property
    def world_size(self) -> int:
        return self.allocation.nodes * self.allocation.ranks

    @property
    def lead_seconds(self) -> int:
        """How long before the time limit the job is warned; 0 is never."""
        return 0 if self.allocation.time_seconds is None else self.limit.lead_seconds

    @property
    def useful_seconds(self) -> int | None:
        """After which ranks are asked to save and leave; None where there is no limit."""
        limit = self.allocation.time_seconds
        if limit is None:
            return None
        brings = self.sync is not None or bool(self.data and self.data.results)
        return limit - self.limit.lead_seconds - (min(names.BRING_SECONDS, limit // 20) if brings else 0)

    @property
    def may_requeue(self) -> bool:
        """Whether the job itself may run again."""
        return self.limit.restarts > 0 and self.limit.form == names.REQUEUE

    @property
    def has_links(self) -> bool:
        """Whether further attempts are further jobs."""
        return self.limit.restarts > 0 and self.limit.form != names.REQUEUE

    @property
    def is_in_parts(self) -> bool:
        """Whether its array is several jobs."""
        return self.array is not None and len(self.array.offsets) > 1

    @property
    def tokens(self) -> list[str]:
        """Of the jobs that it is submitted as."""
        return tokens_of(token_of(self.run, None, 1), self.array.offsets if self.array else ())

    def part(self, number: int) -> Plan:
        """The plan as one of those jobs has it: its tasks under the scheduler's own indices."""
        if self.array is None or not self.array.offsets:
            return self
        offsets = self.array.offsets
        own = tuple(each - offsets[number] for each in self.array.indices if part_of(offsets, each) == number)
        return dataclasses.replace(self, array=self.array._replace(indices=own))

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote, of this or an earlier schema. Raises ValueError on a later one."""
        if value.get("schema", 0) > SCHEMA:
            raise ValueError(f"this plan has schema {value['schema']}; this Serried reads up to {SCHEMA}")
        return typing.cast("Plan", _build(cls, value))


def _plain(value: Any) -> Any:
    """What JSON holds of a part of a plan: each part is an object by the names of its fields."""
    if not isinstance(value, tuple):
        return value
    items = map(_plain, value)
    return dict(zip(value._fields, items, strict=True)) if hasattr(value, "_fields") else tuple(items)


_hints = functools.cache(typing.get_type_hints)
_FORMER_NAMES = {"element": "task", "tree_per_element": "tree_per_task"}
"""Fields of plans that earlier versions wrote."""


def _build(kind: Any, value: Any) -> Any:
    """Make `value`, read from JSON, an instance of `kind`. Unknown keys (a later minor version's) are dropped."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        tuples = [choice for choice in choices if typing.get_origin(choice) is tuple]
        return _build(tuples[0] if tuples and isinstance(value, list) else choices[0], value)
    if kind is Plan or hasattr(kind, "_fields"):
        value = {_FORMER_NAMES.get(name, name): item for name, item in value.items()}
        return kind(**{name: _build(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(_build(inner, item) for item in value)
    return value
