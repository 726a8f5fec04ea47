"""A lab: its directory and ports, its life from up to down, and what one does to it in between."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serried.base import files, processes, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.processes import Process
from serried.lab import config, daemons
from serried.lab.config import NO_FILES, TASK_PROLOG, Spec
from serried.schedulers.slurm.cluster import LAB_RECORD

MODES = {"slurmdbd.conf": 0o600, TASK_PROLOG: 0o755}
"""Modes of files, other than 0644."""

PORTS_OF_A_LAB = 64
_FIRST_PORT, _LAST_PORT = 21_000, 32_700
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""


def root() -> Path:
    """The folder of this user's labs. Its path is short, because the path of a Unix socket has at most 107 bytes."""
    return Path(os.environ.get("SERRIED_LAB_ROOT") or f"/tmp/serried-lab-{os.getuid()}")  # noqa: S108 - owner checked


def labs() -> list[Lab]:
    """All labs of this user by name, also those whose daemons have ended."""
    loaded = (Lab.load(entry) for entry in _entries() if not entry.name.startswith("."))
    return [lab for lab in loaded if lab is not None]


def clear() -> None:
    """Delete the files of unfinished labs, and the root."""
    for rest in _entries():
        shutil.rmtree(rest, ignore_errors=True)
    with contextlib.suppress(OSError):
        root().rmdir()


def _entries() -> list[Path]:
    """The entries of the root. Another process may delete the root at any moment, with the last lab."""
    if not root().is_dir():
        return []
    try:
        with _refusing_others():
            files.check_ours_alone(root())
            return sorted(root().iterdir())
    except FileNotFoundError:
        return []


def check_length(directory: Path) -> None:
    """Raise UsageError if a socket's path would be too long. The longest is spool/n60/n60_4294967295.4294967295."""
    most = 107 - len("/spool/n60/n60_4294967295.4294967295")
    if len(os.fsencode(directory)) > most:
        hint = f"set SERRIED_LAB_ROOT so that it has at most {most} bytes"
        raise UsageError(f"`{directory}` is too long for the sockets of a lab", hint=hint)


def _make_root() -> None:
    folder = root()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _refusing_others():
        files.make_ours_alone(folder).chmod(files.PRIVATE_DIRECTORY)


@contextlib.contextmanager
def _refusing_others() -> Iterator[None]:
    """In /tmp another user may have created a folder or a link of this name."""
    try:
        yield
    except PermissionError as error:
        hint = "remove it, or set SERRIED_LAB_ROOT"
        raise SerriedError(f"`{error.filename}` is not a directory that only you can write to", hint=hint) from error


def create(spec: Spec, *, temporary: bool) -> Lab:
    """Write the lab's directory elsewhere, and rename it into place. The name is the claim, so only one lab gets it."""
    aside = _make_aside(spec)
    try:
        for folder in ("log", "run", "state", "spool", "devices", "database", NO_FILES):
            (aside / folder).mkdir(mode=files.PRIVATE_DIRECTORY)
        spec = _with_devices(spec, aside / "devices")
        for name, text in config.files(spec).items():
            path = aside / name
            path.write_text(text, encoding="utf-8")
            path.chmod(MODES.get(name, 0o644))
        key = aside / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        lab = Lab(spec, {}, owner=processes.myself(), temporary=temporary)
        lab.save(aside)
        _put_in_place(aside, spec)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return lab


def _make_aside(spec: Spec) -> Path:
    aside = spec.directory.with_name(f".{spec.name}.{secrets.token_hex(4)}")
    while True:
        # Another process may delete the root here, with the last lab.
        with contextlib.suppress(FileNotFoundError):
            _make_root()
            aside.mkdir(mode=files.PRIVATE_DIRECTORY)
            return aside


def _put_in_place(aside: Path, spec: Spec) -> None:
    existing = Lab.load(spec.directory)
    if existing is not None and not existing.is_alive:
        existing.down()
    try:
        aside.rename(spec.directory)
    except OSError as error:
        hint = f"another name: serried lab up --name NAME; or end it: serried lab down {spec.name}"
        raise UsageError(f"lab `{spec.name}` is already up", hint=hint) from error


def _with_devices(spec: Spec, folder: Path) -> Spec:
    if not spec.gpus:
        return spec
    try:
        for number in range(spec.gpus):
            # The numbers of /dev/null: opening it does no harm.
            os.mknod(folder / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        devices = _existing_devices(spec.gpus)
    else:
        devices = tuple(str(spec.directory / f"devices/gpu{number}") for number in range(spec.gpus))
    return replace(spec, gpu_devices=devices)


def _existing_devices(count: int) -> tuple[str, ...]:
    """Character devices of this machine: an ordinary user cannot create any."""
    candidates = [Path(f"/dev/tty{number}") for number in range(10, 64)]
    candidates += [Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")]
    devices = [str(device) for device in candidates if device.is_char_device()]
    if len(devices) < count:
        message = f"this machine has character devices for {len(devices)} simulated GPUs, not {count}"
        raise UsageError(message, hint="request fewer with --gpus, or start the lab as root")
    return tuple(devices[:count])


@contextlib.contextmanager
def claim_ports(count: int) -> Iterator[int]:
    """The first of `count` free ports, claimed while the body runs. At its end the daemons must listen on them.

    A starting lab listens on the first port of a block, so two labs never choose the same block. A running lab is
    recognised by the ports of its controller and its nodes.
    """
    for block in range(_FIRST_PORT, _LAST_PORT - PORTS_OF_A_LAB, PORTS_OF_A_LAB):
        with socket.socket() as claim:
            if _can_listen(claim, block) and all(map(_is_free, range(block + 1, block + 1 + count))):
                yield block + 1
                return
    hint = "end labs that you no longer need: serried lab status; serried lab down --all"
    raise SerriedError(f"no {count} consecutive ports are free between {_FIRST_PORT} and {_LAST_PORT}", hint=hint)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in Slurm: a port that only lingers in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _can_listen(probe, port)


def _can_listen(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("", port))
        probe.listen(1)
    except OSError:
        return False
    return True


PATIENCE_SECONDS = 180
END_SECONDS = 60
"""For what was killed to be gone."""


@dataclass(frozen=True)
class Status:
    name: str
    directory: Path
    spec: Spec
    daemons: Mapping[str, bool]
    """Daemon -> whether it runs."""
    nodes: Mapping[str, str]
    """Node -> Slurm's word for its state; empty while the controller does not answer."""
    temporary: bool

    @property
    def is_up(self) -> bool:
        return all(self.daemons.values()) and set(self.nodes) == set(self.spec.node_names)


class Lab:
    """A Slurm cluster of its own in one directory. Its record, `lab.json`, knows its processes."""

    def __init__(
        self, spec: Spec, known: Mapping[str, Process], *, owner: Process | None, temporary: bool = False
    ) -> None:
        self.spec = spec
        self.owner = owner
        """The process that called `up`."""
        self.temporary = temporary
        """It may go when its owner has gone."""
        self._processes = dict(known)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def variables(self) -> dict[str, str]:
        """All that a Slurm command needs to find this lab."""
        return {"SLURM_CONF": str(self.spec.slurm_conf)}

    def environment(self) -> dict[str, str]:
        return {**daemons.outside_slurm(), **self.variables}

    def run(self, *argv: str, timeout: float = 300) -> shell.Result:
        return shell.run(argv, env=self.environment(), timeout=timeout)

    @property
    def is_abandoned(self) -> bool:
        return self.temporary and (self.owner is None or not self.owner.is_alive)

    @property
    def is_alive(self) -> bool:
        """Whether something of it runs, or is just being started."""
        starting = self.owner is not None and self.owner.is_alive and not self._processes
        return starting or any(process.is_alive for process in self._processes.values())

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start all daemons and wait for idle nodes. On failure nothing is left, and the error quotes the log."""
        first = [name for name in daemons.names(self.spec) if name not in self.spec.node_names]
        for name in first:
            progress(f"starting {name}")
            self._launch(name)
            self._await(name)
        progress(f"starting {self.spec.nodes} nodes")
        for name in self.spec.node_names:
            self._launch(name)
        for name in self.spec.node_names:
            self._await(name)

    def kill(self, name: str) -> None:
        """End a daemon as a crash would: the controller forgets its last seconds, a node takes its jobs along."""
        self._check_name(name)
        if name in self._processes:
            self._processes[name].send(signal.SIGKILL)
        if name in self.spec.node_names:
            self._sweep(lambda variables: self._belongs_here(variables) and _node_of(variables) == name)

    def stop(self, name: str) -> None:
        """End a daemon in good order, as for an upgrade: the controller saves its state, a node's jobs go on."""
        self._check_name(name)
        if name in self._processes:
            self._processes[name].send(signal.SIGTERM)
        self._wait_for(name, lambda: not self._is_running(name), "end")

    def restart(self, name: str) -> None:
        """Start a daemon again and wait until it serves; one that still runs is stopped first."""
        self.stop(name)
        self._launch(name, again=True)
        self._await(name)
        if name == "slurmctld":
            # For some seconds it knows nothing of the nodes, and a step that is asked for then hangs.
            running = {node for node in self.spec.node_names if self._is_running(node)}
            self._wait_for(name, lambda: running <= daemons.registered_nodes(self.spec), "hear of its nodes")

    def down(self) -> None:
        """End everything that belongs to this lab and remove its directory. May be called again."""
        for process in self._processes.values():
            process.send(signal.SIGKILL)
        self._sweep(self._belongs_here)
        shell.reap()
        # Threads of a process that was killed may write into the directory for a moment after it.
        deadline = time.monotonic() + END_SECONDS
        shutil.rmtree(self.spec.directory, ignore_errors=True)
        while self.spec.directory.exists():
            if time.monotonic() > deadline:
                hint = "its processes have ended; remove it by hand"
                raise SerriedError(f"`{self.spec.directory}` cannot be removed", hint=hint)
            time.sleep(0.02)
            shutil.rmtree(self.spec.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.spec.directory.parent.rmdir()  # the last one turns off the light

    def leftovers(self) -> list[Process]:
        """The processes of this lab that run: daemons, job steps, and what the jobs have started."""
        return list(processes.with_environment(self._belongs_here))

    def status(self) -> Status:
        return Status(
            name=self.name,
            directory=self.spec.directory,
            spec=self.spec,
            daemons={name: self._is_running(name) for name in daemons.names(self.spec)},
            nodes=daemons.node_states(self.spec),
            temporary=self.temporary,
        )

    def save(self, directory: Path | None = None) -> None:
        record: dict[str, Any] = {
            "schema": 1,
            "spec": self.spec.as_json(),
            "owner": _pair(self.owner),
            "temporary": self.temporary,
            "processes": {name: _pair(process) for name, process in self._processes.items()},
        }
        files.write_json((directory or self.spec.directory) / LAB_RECORD, record)

    @classmethod
    def load(cls, directory: Path) -> Lab | None:
        """The lab in this directory; None when there is none, or its record is gone."""
        record = files.read_json(directory / LAB_RECORD)
        if record is None or record["spec"]["directory"] != str(directory):
            return None
        known = {name: _process(pair) for name, pair in record["processes"].items()}
        owner = _process(record["owner"]) if record["owner"] else None
        return cls(Spec.from_json(record["spec"]), known, owner=owner, temporary=record["temporary"])

    def _launch(self, name: str, *, again: bool = False) -> None:
        if not again:
            daemons.prepare(self.spec, name)
        pid = shell.spawn(
            daemons.argv(self.spec, name),
            log=self._output(name),
            env=daemons.environment(self.spec, name),
            cwd=self.spec.directory,
        )
        process = processes.identify(pid)
        if process is not None:
            self._processes[name] = process
            self.save()

    def _await(self, name: str) -> None:
        answers = daemons.probe(self.spec, name)

        def serves() -> bool:
            if not self._is_running(name):
                raise SerriedError(f"the lab's {name} ended while it started", details=self._last_words(name))
            return answers()

        self._wait_for(name, serves, "answer")

    def _wait_for(self, name: str, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                message = f"the lab's {name} did not {what} within {PATIENCE_SECONDS} s"
                raise SerriedError(message, details=self._last_words(name))
            time.sleep(0.05)

    def _is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].is_alive

    def _sweep(self, matches: Callable[[Mapping[str, str]], bool]) -> None:
        """Kill what matches until nothing does: a dying step may still be starting a process."""
        deadline = time.monotonic() + END_SECONDS
        while left := list(processes.with_environment(matches)):
            for process in left:
                process.send(signal.SIGKILL)
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in left)
                raise SerriedError(f"processes of lab `{self.name}` do not end: {pids}")
            time.sleep(0.02)

    def _belongs_here(self, variables: Mapping[str, str]) -> bool:
        """Daemons carry our mark; jobs carry the lab's SLURM_CONF and a node's name, which no user's shell does."""
        if variables.get(daemons.MARK) == str(self.spec.directory):
            return True
        return variables.get("SLURM_CONF") == str(self.spec.slurm_conf) and "SLURMD_NODENAME" in variables

    def _check_name(self, name: str) -> None:
        known = daemons.names(self.spec)
        if name not in known:
            raise UsageError(f"lab `{self.name}` has no daemon or node `{name}`", hint=f"it has {', '.join(known)}")

    def _output(self, name: str) -> Path:
        return self.spec.directory / f"log/{name}.out"

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._output(name).read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        return ""


def _node_of(variables: Mapping[str, str]) -> str | None:
    return variables.get(daemons.NODE_MARK) or variables.get("SLURMD_NODENAME")


def _pair(process: Process | None) -> tuple[int, str] | None:
    return (process.pid, process.started) if process else None


def _process(pair: tuple[int, Any]) -> Process:
    return Process(pair[0], str(pair[1]))
