"""Faults. Each is a function of a case; what it returns is done when the fault is over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.case import PATIENCE_SECONDS, Case
from serried.base import files, linux
from serried.base.processes import Process

Heal = Callable[[], None]
FAST, SLOW = 1.5, 12.0
"""Bounds of how long a fault that passes lasts, in seconds."""
SLOWEST = 35.0
"""The same of a daemon of the scheduler: Slurm notices that a node is gone."""
COMMAND_SECONDS = 120
"""For a command about other runs than the damaged one."""


def nothing() -> None:
    pass


def hit_process(case: Case, name: str, *, kill: bool, phase: str = "", holds: bool = False) -> Heal:
    """Kill -9 a process of the run, or stop it for a while, or for good."""
    case.moment(name, phase={"finish": "ends", "submit": "submits"}.get(name, phase), holds=holds)
    found = _find(case, name)
    if found is None:
        case.say(f"no {name} to hit")
        return nothing
    case.is_hit = True
    if not kill:
        return _stop(case, name, found)
    if name == "rank":
        _kill_rank(case, found)
    else:
        found.send(signal.SIGKILL)
    case.say(f"killed {name} {found.pid}")
    return nothing


def _find(case: Case, kind: str) -> Process | None:
    names = case.seen.alive(kind)
    return case.seen[case.random.choice(names)] if names else None


def _kill_rank(case: Case, rank: Process) -> None:
    """Stopped first: one that is certainly alive then has certainly not exited with 0."""
    rank.send(signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while rank.is_alive and (linux.stat(rank.pid) or ["?"])[0] != "T" and time.monotonic() < deadline:
        time.sleep(0.001)
    if (linux.stat(rank.pid) or ["?"])[0] == "T":
        case.killed += [it for it in case.executions() if it[2] == rank.pid]
    rank.send(signal.SIGKILL)


def _stop(case: Case, name: str, found: Process) -> Heal:
    found.send(signal.SIGSTOP)
    if case.has_short_limit:
        case.say(f"stopped {name} {found.pid} for good")
        return nothing
    seconds = case.random.uniform(FAST, SLOW)
    case.say(f"stopped {name} {found.pid} for {seconds:.1f} s")
    case.pause(seconds)
    return lambda: found.send(signal.SIGCONT)


def hit_daemon(case: Case, name: str, *, kill: bool) -> Heal:
    """A daemon of the scheduler dies or is stopped, and comes back after a while."""
    assert case.lab is not None
    lab = case.lab
    case.moment(phase="submits" if case.random.random() < 0.3 else "")
    daemon = case.random.choice(("n1", "n2")) if name == "slurmd" else name
    seconds = case.random.uniform(FAST, SLOW if case.random.random() < 0.7 else SLOWEST)
    case.is_hit = not case.is_over
    if kill and name == "slurmctld":
        case.may_be_cancelled = True  # it forgets what it began last, finds it running, and cancels it
    (lab.kill if kill else lab.stop)(daemon)
    case.say(f"{'killed' if kill else 'stopped'} {daemon} for {seconds:.1f} s")
    case.pause(seconds)
    case.needs_repair = True
    return lambda: lab.restart(daemon)


def fill_disk(case: Case) -> Heal:
    """No byte more fits where the run directory is; for a while, or for good."""
    case.moment()
    case.is_hit = not case.is_over
    filler = case.scratch / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    if case.random.random() < 0.3:
        case.say("the disk is full for good")
        return nothing
    seconds = case.random.uniform(FAST, SLOW)
    case.say(f"the disk is full for {seconds:.1f} s")
    case.pause(seconds)
    return lambda: filler.unlink(missing_ok=True)


def lose_directory(case: Case, *, for_good: bool) -> Heal:
    case.moment()
    directory = case.directory
    if directory is None or case.is_over:
        case.say("no run to lose its directory")
        return nothing
    case.is_hit = True
    aside = directory.with_name(f"{directory.name}-away")
    directory.rename(aside)
    if for_good:
        shutil.rmtree(aside, ignore_errors=True)
        case.say("removed the run directory")
        return nothing
    seconds = case.random.uniform(FAST, SLOW)
    case.say(f"renamed the run directory for {seconds:.1f} s")
    case.pause(seconds)
    return partial(_put_back, aside, directory)


def _put_back(aside: Path, directory: Path) -> None:
    """Over whatever was made in its place meanwhile."""
    while aside.exists():
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # something was made in its place again
            aside.rename(directory)


def cut_network(case: Case) -> Heal:
    """The kernel breaks the connections between the head and a node's agent."""
    case.moment("head", lasts="connection")
    head = case.seen.get("head")
    ours = _connections(head.pid) if head and head.is_alive else []
    if not ours:
        case.say("no connection to cut")
        return nothing
    ends = case.random.choice(ours)
    subprocess.run(["ss", "-K", "-tn", "src", ends[0], "dst", ends[1]], capture_output=True, check=False)
    assert head is not None
    case.is_hit = head.is_alive and ends not in _connections(head.pid)
    case.say(f"cut {ends[0]} from {ends[1]}" if case.is_hit else "the kernel did not cut the connection")
    return nothing


def _connections(pid: int) -> list[tuple[str, str]]:
    """Both ends of each that this process has."""
    shown = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in shown.splitlines() if f"pid={pid}," in line]
    return [(it[2], it[3]) for it in words]


def strangers(case: Case) -> Heal:
    """Lines without proof, and many connections, at the ports of the head while it waits for its nodes."""
    case.is_harmless = True
    case.await_(lambda: case.is_over or bool(_listening(case)))
    ports = _listening(case)
    opened = []
    for number in range(300):
        for port in ports:
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), 5))
                opened[-1].sendall(("\u00e9 n {}\n".encode(), case.random.randbytes(200), b"")[number % 3])
                case.is_hit = True
    case.say(f"{len(opened)} connections of strangers")
    for connection in opened:
        connection.close()
    return nothing


def _listening(case: Case) -> list[int]:
    """The ports of the head for its nodes, which it closes before its ranks start."""
    head = case.seen.get("head")
    if head is None or not head.is_alive:
        return []
    shown = subprocess.run(["ss", "-tlnpH"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[3].rpartition(":")[2]) for line in shown.splitlines() if f"pid={head.pid}," in line]


def damage_record(case: Case) -> Heal:
    """A file in the record of another run is lost to zeros, cut, or something that is no file."""
    record, other = case.record, "zz9zz9"
    if record is None:
        case.say("no record to damage")
        return nothing
    case.is_harmless = True
    copy = record.with_name(other)
    shutil.copytree(record, copy)
    every = [path for path in copy.rglob("*") if path.is_file()]
    for path in every:
        path.write_bytes(path.read_bytes().replace(record.name.encode(), other.encode()))
    chosen = case.random.choice(sorted(every))
    how = case.random.choice(("zeros", "cut", "a FIFO", "a directory"))
    content = chosen.read_bytes()
    chosen.unlink()
    if how == "a FIFO":
        os.mkfifo(chosen)
    elif how == "a directory":
        chosen.mkdir()
    else:
        chosen.write_bytes(bytes(4096) if how == "zeros" else content[: len(content) // 2])
    case.is_hit = True
    case.say(f"{chosen.relative_to(copy)} of another run: {how}")
    for words in (
        ("ps", "--all", "--json"),
        ("clean", "--list"),
        ("report", record.name),
        ("clean", "--dry-run", "--records"),
    ):
        try:
            done = case.place.serried(*words, timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            case.harmed.append(f"`{words[0]}` hangs")
            continue
        is_listed = words[0] != "ps" or record.name in done.stdout
        # A live run may have nothing to report yet; the scheduler may not have answered about the damaged one.
        expected = {"report": (0, 1, 2), "ps": (0, 3)}.get(words[0], (0,))
        if "Traceback" in done.stderr or not is_listed or done.returncode not in expected:
            case.harmed.append(f"`{words[0]}` exited with {done.returncode}: {done.stderr.strip()[-200:]}")
    return partial(shutil.rmtree, copy)


def step_clock(case: Case) -> Heal:
    """The clock of the first node is set back or forward: the times that were written before are of another clock."""
    case.is_harmless = True
    case.moment("head", phase="works", holds=True)
    attempt = case.attempt
    claim = files.read_json(attempt.claim) if attempt else None
    if attempt is None or claim is None or case.is_over:
        case.say("no claim to change")
        return nothing
    seconds = case.random.choice((-86400, -3600, -60, 60, 3600, 86400))
    files.write_json(attempt.claim, {**claim, "started": claim["started"] + seconds})
    case.is_hit = True
    case.say(f"the attempt began {seconds} s from when it did")
    for words in (("ps", "--json"), ("why", "--json"), ("show", "--json"), ("report", "--json")):
        done = case.place.serried(*words, str(case.run))
        if negative := re.findall(r'"\w*seconds": -[0-9.]+', done.stdout):
            case.harmed.append(f"`{words[0]}` prints {negative[0]}")
        if "Traceback" in done.stderr:
            case.harmed.append(f"`{words[0]}`: {done.stderr.strip()[-200:]}")
    return nothing


def cancel(case: Case, *, by_scheduler: bool, then: str = "") -> Heal:
    """Ask for the end while the ranks cannot end by themselves; perhaps what should bring it about is killed then."""
    case.moment(holds=True)
    attempt = max((it[0] for it in case.executions()), default=0)
    place = case.place
    if case.lab and by_scheduler:
        shown = json.loads(place.serried("show", "--json", str(case.run)).stdout)
        words = ["scancel", str(shown["runs"][0]["job"])]
    else:
        words = [sys.executable, "-m", "serried", "stop", "-y", str(case.run)]
    silent = subprocess.DEVNULL
    case.is_cancel_asked = True
    asking = subprocess.Popen(
        words, cwd=place.project, env=dict(place.environ), stdin=silent, stdout=silent, stderr=silent
    )
    is_killed = False
    if then:
        case.moment(then, phase="stops")
        found = _find(case, then)
        if found is not None:
            found.send(signal.SIGKILL)
            is_killed = True
            case.say(f"killed {then} {found.pid}")
    is_cancelled = asking.wait(timeout=PATIENCE_SECONDS) == 0
    if is_cancelled:
        case.cancelled_in = attempt
    case.is_hit = is_killed if then else is_cancelled
    case.say("cancelled" if is_cancelled else "could not be cancelled")
    return nothing
