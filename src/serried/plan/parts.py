"""The parts of a plan: what each says of the job, for the script, the agent and the readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from serried.protocol import names


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

    image: str
    """A file or a folder, absolute; what it is made from, until that is settled; or what pyxis is told."""
    runtime: str = ""
    """The program, or `pyxis`; empty until it is looked for."""
    binds: tuple[str, ...] = ()
    """As contract.binds reads them: absolute, or on the node's own disk."""
    writable: bool = False
    options: tuple[str, ...] = ()
    """Further options for the runtime, as they are."""
    contained: bool = False
    local: bool | None = None
    """Whether each node copies the image to its own disk first; None until that is settled."""
    requirements: str = ""
    """A file of what is installed on top of the image, absolute; empty for none."""
    made_from: str = ""
    """What Serried made the image from."""


class Limit(NamedTuple):
    lead_seconds: int = 60
    """How long before the time limit ranks are told."""
    grace_seconds: int = 30
    """Between TERM and KILL."""
    silence_seconds: int | None = None
    """No output from any rank for so long is a failure; None is off."""
    restarts: int = 0
    """How many further attempts the run may have."""
    form: str = names.REQUEUE
    """How the next one comes about: `requeue`, `successor` or `prequeued`."""
    notify: str | None = None
    """A signal that goes to ranks with the request to save and leave, `USR1` say; None sends nothing."""
    total_seconds: int | None = None
    """How much time was asked for in all, which `restarts` follows from; None where nobody said."""


class Launch(NamedTuple):
    """What starts the ranks. A kind with a module in `agent/launchers/kinds/` starts them through `agent rank`."""

    kind: str = "agent"
    max_restarts: int = 0
    """How often the launcher may start ranks that failed again, within one attempt."""
    options: tuple[str, ...] = ()
    """Further options of the launcher, placeholders unfilled."""
    tf_config: bool = False
    """Whether ranks are told of each other by `TF_CONFIG`."""


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
    tree_per_element: bool = False
    """Each element of an array unpacks a working tree of its own; else all share one."""
    links: tuple[str, ...] = ()
    """Top-level entries of the project that the unpacked tree links to."""
    python_path: tuple[str, ...] = ()
    """Folders (relative to the tree) put before PYTHONPATH: editable installs redirected to the snapshot."""


class Array(NamedTuple):
    indices: tuple[int, ...]
    parallel: int | None = None
    """How many elements may run at once; None leaves it to the scheduler."""
    each: bool = False
    """True: element I runs line I of commands.json; False: all run the plan's command."""
    repeat: int | None = None
    """How many elements in a row are repeats of one command, each with the next seed; None for no repeats."""
    offsets: tuple[int, ...] = ()
    """One for each job that the array is submitted as, where one job cannot hold it: what that job adds to the
    scheduler's own indices, which begin at 0. Empty: one job, whose indices are the elements."""


class Notify(NamedTuple):
    """Whom to tell of what becomes of the run."""

    command: tuple[str, ...] = ()
    webhook: str | None = None
    """The variable that holds its address, a secret."""
    on: tuple[str, ...] = ()
    """`start`, `finish`, `fail`, `stall`."""


class After(NamedTuple):
    """A run, or an element of one, that this one comes after."""

    run: str
    name: str
    directory: str
    """Its run directory, absolute."""
    condition: str = names.AFTER_OK
    """How it has to end: `ok`, `any` or `notok`."""
    element: int | None = None
    job: str | None = None
    """Its first job; of an array in parts all of them, with commas. None where it had ended as it should before this
    one was submitted."""

    def __str__(self) -> str:
        """`k3f9q2`, `k3f9q2/17:any`."""
        element = "" if self.element is None else f"/{self.element}"
        condition = "" if self.condition == names.AFTER_OK else f":{self.condition}"
        return f"{self.run}{element}{condition}"


class Resume(NamedTuple):
    """What a run begins from, where it has no checkpoint of its own yet."""

    checkpoints: tuple[str, ...]
    """Absolute paths: one for each element of the array in its order, or one for all; empty for one without."""
    run: str | None = None
    """The run, or the element (`k3f9q2/17`), whose they are."""

    def __str__(self) -> str:
        if len(self.checkpoints) > 1:
            return f"{self.run}, each element from its own"
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
    """Checkpoints that the agents bring to the run's own, because the program does not."""

    watch: tuple[str, ...]
    """Patterns: from where ranks start, or below `{checkpoints}`, which is on the node's own disk then."""
    every_seconds: int = 30
    keep: int = 3
    bandwidth: int | None = None
    """Bytes in a second."""
    keep_local: int | None = None
    """How many stay on the node's disk; None for all."""


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


def whom_to_ask(contact: str | None, docs: str | None) -> str | None:
    """`ask help@site, or see https://…`, as far as the profile knows."""
    ways = [f"ask {contact}" if contact else "", f"see {docs}" if docs else ""]
    return ", or ".join(way for way in ways if way) or None
