"""A lab's life: up, down, and what one does to it in between."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried.base import files, processes, shell
from serried.base.errors import SerriedError, UsageError
from serried.base.processes import Process
from serried.lab import daemons
from serried.lab.config import Spec
from serried.schedulers.slurm.site import LAB_RECORD

PATIENCE_SECONDS = 180
END_SECONDS = 60
"""For what was killed to be gone."""


@dataclass(frozen=True)
class Status:
    """How a lab stands just now."""

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
        """Our own environment, pointed at this lab."""
        return {**daemons.outside_slurm(), **self.variables}

    def run(self, *argv: str, timeout: float = 300) -> shell.Result:
        """Run a command against this lab."""
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
            self._sweep(lambda variables: self._is_on(variables, name))

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
        self._remove()
        with contextlib.suppress(OSError):
            self.spec.directory.parent.rmdir()  # the last one turns off the light

    def _remove(self) -> None:
        """The directory. Threads of a process that was killed may write into it for a moment after it."""
        deadline = time.monotonic() + END_SECONDS
        shutil.rmtree(self.spec.directory, ignore_errors=True)
        while self.spec.directory.exists():
            if time.monotonic() > deadline:
                raise SerriedError(
                    f"`{self.spec.directory}` cannot be removed", hint="its processes have ended; remove it by hand"
                )
            time.sleep(0.02)
            shutil.rmtree(self.spec.directory, ignore_errors=True)

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
        if record is None:
            return None
        if record["spec"]["directory"] != str(directory):
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
                raise SerriedError(
                    f"the lab's {name} did not {what} within {PATIENCE_SECONDS} s", details=self._last_words(name)
                )
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

    def _is_on(self, variables: Mapping[str, str], node: str) -> bool:
        here = variables.get(daemons.NODE_MARK) or variables.get("SLURMD_NODENAME")
        return self._belongs_here(variables) and here == node

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


def _pair(process: Process | None) -> tuple[int, str] | None:
    return (process.pid, process.started) if process else None


def _process(pair: tuple[int, Any]) -> Process:
    return Process(pair[0], str(pair[1]))
