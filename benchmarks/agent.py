"""What the agents cost on a node: memory, idle CPU, and calls to the file system that everybody shares."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from measure import Figure, cpu_seconds, environment, peak_mib, record
from world import World, world

WATCH_SECONDS = 30
SETTLE_SECONDS = 3
RUN = ["run", "--ranks", "2", "--time", "5m", "--"]
ROLE = re.compile(r"agent\.pyz\"?,? ?\"?(head|node|finish)")
CALL = re.compile(r"^(\d+) +(\w+)\((?:AT_FDCWD, |\d+, )?\"?(/(?:proc|sys|dev)\b)?")
"""pid, call, and whether it goes to the kernel's own file systems, which no node shares."""


def agents(run_directories: Path) -> dict[int, str]:
    """The pids of the agents of runs below a folder, and their roles."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except (OSError, NotADirectoryError):
            continue
        role = re.search(r"agent\.pyz (head|node)\b", words)
        if role and str(run_directories) in words and not words.startswith("/bin/bash"):
            found[int(process.name)] = role[1]
    return found


def at_rest(here: World) -> list[Figure]:
    argv = [here.bin / "serried", *RUN, "sleep", str(WATCH_SECONDS + 3 * SETTLE_SECONDS)]
    running = subprocess.Popen(argv, env=here.env, cwd=here.project, stdout=subprocess.DEVNULL)
    try:
        while set(agents(here.folder).values()) != {"head", "node"}:
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        found = agents(here.folder)
        before = {pid: cpu_seconds(pid) for pid in found}
        time.sleep(WATCH_SECONDS)
        share = {role: (cpu_seconds(pid) - before[pid]) / WATCH_SECONDS for pid, role in found.items()}
        memory = {role: peak_mib(pid) for pid, role in found.items()}
        connections = len(Path("/proc/net/tcp").read_text().splitlines())
    finally:
        running.wait()
    return [
        Figure(
            "highest memory of an agent",
            f"node agent {memory['node']:.1f} MiB, head agent {memory['head']:.1f} MiB",
            "",
            "≤ 30 MB",
            max(memory.values()) <= 30,
        ),
        Figure(
            f"CPU of an agent while its ranks sleep, over {WATCH_SECONDS} s",
            f"node agent {share['node']:.3%}, head agent {share['head']:.3%} of a core",
            f"{connections:,} connections on this machine, which the node agent lists until its ranks have one",
            "≤ 0.2 % of a core",
            max(share.values()) <= 0.002,
        ),
    ]


def file_calls(here: World, argv: list[str | Path]) -> Counter[str]:
    """Calls that name a file, by the role of the process that made them; `python` for any other."""
    trace = here.folder / "trace"
    here.run("strace", "-f", "-qq", "-e", "trace=%file", "-s", "4096", "-o", trace, *argv)
    roles: dict[str, str] = {}
    counted: Counter[str] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = CALL.match(line)
        if call is None:
            continue
        pid, name, is_kernel = call.groups()
        if name == "execve":  # the last one of a pid is the one that succeeded
            role = ROLE.search(line)
            roles[pid] = role[1] if role else "python"
        if not is_kernel and '"", ' not in line:  # an empty path asks about an open file
            counted[roles.get(pid, "forked")] += 1
    return counted


def calls(here: World) -> list[Figure]:
    run = file_calls(here, [here.bin / "serried", *RUN, "true"])
    bare = file_calls(here, [here.bin / "python", "-c", "pass"])["python"]
    return [
        Figure(
            "system calls with a path (not in /proc), over a run of two ranks",
            f"node agent {run['node']}, head agent {run['head']}, `finish` {run['finish']}",
            f"one `python -c pass` of a virtual environment: {bare}",
            "≤ 250 of an agent",
            max(run[role] for role in ("node", "head", "finish")) <= 250,
        )
    ]


def main() -> None:
    if not shutil.which("strace"):
        raise SystemExit("error: the calls are counted with strace\n\nhint: apt-get install strace")
    with world(environment()) as here:
        figures = at_rest(here) + calls(here)
    record("Agents", figures)


if __name__ == "__main__":
    main()
