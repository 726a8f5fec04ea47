"""Attempts on nodes with something wrong: what is injected, and whether the checks name it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import node_spaces
from node_spaces import NODE, Fault, address, host, inside, nodes
from serried.base import linux, processes
from serried.base.files import read_journal, read_json
from serried.schema.checks import NOT_TESTED, NOTE, PROBLEM, Finding
from serried.schema.events import JournalEvent
from serried.schema.layout import RunDirectory
from serried.schema.plan import Allocation, Environment, Limit, Plan, Source
from serried.submission import script
from stub_scheduler import StubScript, register, site_of

SECONDS = 150.0
"""For an attempt: longer than any limit of the checks."""
UNPRIVILEGED = ("setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock")
"""A process that may lock memory without limit has no limit."""
SYN = "tcp flags & (syn|ack) == syn drop"
TORCH = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
PYTHON = Path(sys.executable).resolve()
CGROUPS = "/sys/fs/cgroup/cpu"
OTHER_PYTHON = "/usr/bin/python3"
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class Draw(random.Random):
    """What a seed decides."""

    def node(self, count: int, *, first: bool = True) -> int:
        return self.randrange(0 if first else 1, count)


def wrong_interface(draw: Draw, count: int) -> Fault:
    """All nodes have it, with one address; or one node calls it by another name."""
    variables = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    ids = ("interface",)
    if draw.random() < 0.5:
        lines = "ip link add name docker0 type bridge\nip addr add 172.17.0.1/16 dev docker0\nip link set docker0 up"
        names = dict.fromkeys(variables, "docker0")
        return Fault("wrong interface", ids, lines=dict.fromkeys(range(count), lines), variables=names)
    node = draw.node(count)
    lines = "ip link set eth0 down\nip link set eth0 name ens3\nip link set ens3 up"
    return Fault("wrong interface", ids, (node,), lines={node: lines}, variables=dict.fromkeys(variables, "eth0"))


def hosts_file(old: str, new: str) -> str:
    change = f'sed "s/^{old}$/{new}/" "$PLACE/hosts" > "/dev/shm/hosts"'
    return f"{change}\nmount --bind /dev/shm/hosts /etc/hosts"


def loopback_name(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    lines = hosts_file(f"{address(node)} {host(node)}", f"127.0.1.1 {host(node)}")
    return Fault("host name is 127.0.1.1", ("names",), (node,), lines={node: lines})


def wrong_address(draw: Draw, count: int) -> Fault:
    node, peer = draw.sample(range(count), 2)
    lines = hosts_file(f"{address(peer)} {host(peer)}", f"10.88.0.77 {host(peer)}")
    return Fault("name of another node is wrong", ("names",), (node,), lines={node: lines})


def firewall_one_way(draw: Draw, count: int) -> Fault:
    one, other = draw.sample(range(count), 2)
    rules = f"ip saddr {{{one}}} ip daddr {{{other}}} {SYN}"
    return Fault("firewall, one way", ("connections",), (one, other), rules=rules)


def firewall_of_node(draw: Draw, count: int) -> Fault:
    """In both directions; some nodes are still reached from it."""
    node, *others = draw.sample(range(count), count)
    rules = [f"ip daddr {{{node}}} {SYN}"]
    rules += [f"ip saddr {{{node}}} ip daddr {{{other}}} {SYN}" for other in others[: draw.randint(1, count - 1)]]
    return Fault("firewall of a node", ("connections",), (node,), rules="\n".join(rules))


def mtu_of_link(draw: Draw, count: int) -> Fault:
    """Larger packets of two nodes disappear, as jumbo frames do in a switch that does not know them."""
    one, other = draw.sample(range(count), 2)
    rules = [f"ip saddr {{{a}}} ip daddr {{{b}}} ip length > 1300 drop" for a, b in ((one, other), (other, one))]
    return Fault("MTU of a link", ("mtu",), (one, other), rules="\n".join(rules))


def mtu_of_node(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    rules = f"ip saddr {{{node}}} ip length > 1300 drop\nip daddr {{{node}}} ip length > 1300 drop"
    return Fault("MTU of a node", ("mtu",), (node,), rules=rules)


def memlock(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    return Fault("memlock", ("memlock",), (node,), words={node: (*UNPRIVILEGED, "prlimit", "--memlock=65536:65536")})


def small_memory(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    size = draw.choice(("1m", "16m", "64m"))
    return Fault("small /dev/shm", ("shared-memory",), (node,), lines={node: f"mount -o remount,size={size} /dev/shm"})


FILL = "cat /dev/zero > {}/filler 2>/dev/null || true"


def full_memory(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    lines = "mount -o remount,size=32m /dev/shm\n" + FILL.format("/dev/shm")
    return Fault("full /dev/shm", ("shared-memory",), (node,), lines={node: lines})


def full_disk(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    lines = 'mount -o remount,size=8m "$PLACE/disk"\n' + FILL.format('"$PLACE/disk"')
    return Fault("full disk", ("disk",), (node,), lines={node: lines})


def clock(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    shift = draw.choice(("+3600", "-3600"))
    words = ("env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME={shift}", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    return Fault("clock", ("clock",), (node,), words={node: words})


def stale_files(draw: Draw, count: int) -> Fault:
    node = draw.node(count, first=False)
    lines = 'mkdir -p /dev/shm/stale && cp -a "$RUN/." /dev/shm/stale && mount --bind /dev/shm/stale "$RUN"'
    return Fault("stale file system", ("root-visible",), (node,), lines={node: lines})


OWN_ENVIRONMENT = 'cp -a "$PLACE/venv" /dev/shm/venv\nmount --bind /dev/shm/venv "$PLACE/venv"\n'


def other_torch(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    lines = f"""{OWN_ENVIRONMENT}echo "__version__ = '2.4.0'" > "$PLACE/venv/{TORCH}/version.py\""""
    return Fault("other torch", ("versions",), (node,), lines={node: lines})


def other_python(draw: Draw, count: int) -> Fault:
    node = draw.node(count)
    lines = f'{OWN_ENVIRONMENT}ln -sf {OTHER_PYTHON} "$PLACE/venv/bin/python"'
    return Fault("other Python", ("versions",), (node,), lines={node: lines})


def hung_program(draw: Draw, count: int) -> Fault:
    """The ranks' Python does not start."""
    node = draw.node(count)
    script = f'#!/bin/bash\\ncase "$*" in *probe*) exec sleep 600 ;; esac\\nexec -a "$0" {PYTHON} "$@"\\n'
    lines = f"""{OWN_ENVIRONMENT}rm "$PLACE/venv/bin/python"
        printf '{script}' > "$PLACE/venv/bin/python"
        chmod +x "$PLACE/venv/bin/python\""""
    return Fault("hung program", ("import-time", "matrix-product"), (node,), lines={node: lines})


def slow_node(draw: Draw, count: int) -> Fault:
    """It has a tenth of a CPU."""
    node = draw.node(count)
    lines = f'mkdir "{CGROUPS}/${{RUN##*/}}"\necho 10000 > "{CGROUPS}/${{RUN##*/}}/cpu.cfs_quota_us"'
    enter = f'echo $$ > "{CGROUPS}/${{SERRIED_RUN_DIR##*/}}/tasks"; exec "$@"'
    words = ("sh", "-c", enter, "sh")
    return Fault("slow node", ("matrix-product",), (node,), lines={node: lines}, words={node: words})


def dead_rendezvous(draw: Draw, count: int) -> Fault:  # noqa: ARG001
    return Fault("dead rendezvous port", ("rendezvous",), (0,), drops_rendezvous=True)


def hung_check(draw: Draw, count: int) -> Fault:
    """Name resolution that waits, which would hold up a head too, or a stopped process."""
    node = draw.node(count, first=False)
    about = Fault("hung check", ("names", "node-answers"), (node,), levels=(PROBLEM, NOTE, NOT_TESTED))
    if draw.random() < 0.5:
        return about._replace(stops=("check", node))
    return about._replace(lines={node: "mkfifo /dev/shm/fifo\nmount --bind /dev/shm/fifo /etc/hosts"})


KINDS: tuple[Callable[[Draw, int], Fault], ...] = (
    wrong_interface,
    loopback_name,
    wrong_address,
    firewall_one_way,
    firewall_of_node,
    mtu_of_link,
    mtu_of_node,
    memlock,
    small_memory,
    full_memory,
    full_disk,
    clock,
    other_torch,
    other_python,
    slow_node,
    hung_program,
    stale_files,
    dead_rendezvous,
    hung_check,
)


class Seen(NamedTuple):
    """What the journal of an attempt says, and how it ended."""

    checked: list[dict[str, Any]]
    state: str
    message: str
    run: Path
    seconds: float

    def findings(self, *levels: str) -> list[Finding]:
        found = [finding for part in self.checked for finding in part["findings"] if finding["level"] in levels]
        fields = ("id", "level", "seen")
        return [Finding(*(it[name] for name in fields), hosts=tuple(it.get("hosts", ()))) for it in found]


def attempt(count: int, place: Path, fault: Fault, *, preflight: bool = True, environment: Path | None = None) -> Seen:
    """A whole attempt on `count` nodes, one rank on each, by the agents' own code.

    `environment`: the ranks' virtual environment, in place of one that has no more than torch's version.
    """
    register("spaces", StubScript(f'--hosts "$HOSTS_OF_SPACES" --node-variable {NODE}', launcher_of))
    environment = environment or make_environment(place / "venv")
    waits = "until grep -q '\"checked\"' $SERRIED_RUN_DIR/attempts/1/events.jsonl; do sleep 0.2; done"
    plan = Plan(
        run="p" + "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(5)),
        name="preflight",
        project="preflight",
        experiment="preflight",
        created="2026-11-22T00:00:00Z",
        command=("true" if preflight else f"timeout 120 bash -c {shlex.quote(waits)}",),
        shell=True,
        site=site_of("here", "spaces", str(place / "root"), python=sys.executable),
        allocation=Allocation(nodes=count, ranks=1, gpus=0, cpus=1, memory_mb=None, time_seconds=None),
        source=Source(directory=str(place), snapshot=False),
        limit=Limit(grace_seconds=2),
        environment=Environment(venv=str(environment), env=dict(fault.variables)),
        preflight=preflight,
    )
    run = RunDirectory(Path(plan.directory))
    run.path.mkdir(parents=True)
    run.plan.write_text(json.dumps(plan.to_json()))
    run.job_script.write_text(script.render(plan, python=sys.executable))
    run.agent.write_bytes(packed_agent())
    began = time.monotonic()
    with nodes(count, place, fault, run.path) as pids, (place / "scheduler.log").open("wb") as log:
        hosts = ",".join(map(host, range(count)))
        own = {**os.environ, "TMPDIR": str(place / "disk"), "SERRIED_JOB": "1", "HOSTS_OF_SPACES": hosts}
        words = [*inside(pids[0]), "/bin/bash", str(run.job_script), f"{plan.run}-1"]
        job = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
        try:
            job.wait(SECONDS)
        finally:
            if job.poll() is None:
                job.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(30)
            end_processes(plan.run)
            with contextlib.suppress(OSError):
                Path(CGROUPS, plan.run).rmdir()
    end = read_json(run.exit) or {}
    checked = [entry for entry in read_journal(run.attempt(1).events) if entry["event"] == JournalEvent.CHECKED]
    return Seen(checked, end.get("state", ""), end.get("message", ""), run.path, time.monotonic() - began)


def make_environment(folder: Path) -> Path:
    """A virtual environment with a torch that has a version and cannot be imported."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(PYTHON)
    (folder / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
    (folder / TORCH).mkdir(parents=True)
    (folder / TORCH / "version.py").write_text("__version__ = '2.7.1'\n")
    (folder / TORCH / "__init__.py").write_text("raise ModuleNotFoundError(name='torch')\n")
    return folder


def is_named(finding: Finding, fault: Fault, count: int) -> bool:
    blamed = set(finding.hosts)
    right = {host(node) for node in fault.hosts}
    return (not fault.ids or finding.id in fault.ids) and (blamed == right or (not right and len(blamed) == count))


def verdict(fault: Fault, seen: Seen, count: int) -> str:
    """`right`, `wrong` where a node that is well is blamed for a problem, `missed`."""
    right = {host(node) for node in fault.hosts} or {host(node) for node in range(count)}
    if any(set(finding.hosts) - right for finding in seen.findings(PROBLEM)):
        return "wrong"
    return "right" if any(is_named(it, fault, count) for it in seen.findings(*fault.levels)) else "missed"


def launcher_of(plan: Plan) -> tuple[str, ...]:
    return (sys.executable, node_spaces.__file__, str(Path(plan.site.root).parent / "world.json"))


@functools.cache
def packed_agent() -> bytes:
    return script.agent().read()


def end_processes(run: str) -> None:
    """What is left of a run that did not end by itself."""
    for pid in linux.other_pids():
        if any(value.startswith(f"{run}/") for value in processes.environment(pid).values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
