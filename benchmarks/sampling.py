"""What sampling costs a node, beside nvitop's collector and wandb's system metrics: processor time, all without a GPU.

    .venv/bin/python benchmarks/sampling.py [SECONDS]

All three watch the same eight ranks with four idle loader workers each, every five seconds, at the same time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Figure, record

from serried.base import linux
from serried.schema.events import ToSampler
from serried.submission import script

RANKS, WORKERS, EVERY, WARM = 8, 4, 5, 15.0
PERIODS_OF_AN_HOUR = 120
PEERS = ("nvitop==1.7.2", "wandb==0.31.0")
RANK = f"""
import os, time
for _ in range({WORKERS}):
    if os.fork() == 0:
        time.sleep(100000)
step = 0
while True:
    step += 1
    print(f"step {{step}}/100000 loss {{1 / step}}", flush=True)
    time.sleep(0.1)
"""
NVITOP = f"""
import sys, time
from nvitop import ResourceMetricCollector
collector = ResourceMetricCollector(devices=[], root_pids=set(map(int, sys.argv[1:])), interval={EVERY})
collector.daemonize(lambda metrics: True, interval={EVERY})
time.sleep(100000)
"""
WANDB = f"""
import time, wandb
settings = wandb.Settings(x_stats_sampling_interval={EVERY}, silent=True)
with wandb.init(project="benchmark", mode="offline", settings=settings) as run:
    time.sleep(100000)
"""


def peers() -> Path:
    """A Python with the other tools."""
    folder = Path(tempfile.gettempdir()) / f"serried-sampling-peers-{os.getuid()}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *PEERS], check=True)
    return python


def sampler(folder: Path, ranks: list[subprocess.Popen[bytes]]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process beside an agent, with ranks to watch, and the agent's end of its socket."""
    (folder / "agent.pyz").write_bytes(script.agent().read())
    (folder / "node-0").mkdir()
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-I", "-S", str(folder / "agent.pyz"), "sample"]
    process = subprocess.Popen(argv, stdin=theirs)
    metric = {"name": "loss", "source": r"stdout:step (?P<step>\d+)/(?P<total>\d+) loss (\S+)"}
    begin = {
        "do": ToSampler.BEGIN, "every": EVERY, "node": 0, "host": "here", "folder": str(folder),
        "attempt": str(folder), "results": str(folder), "mode": 0o600, "gpus": "", "is_shared": False, "mark": None,
        "metric": metric,
    }  # fmt: skip
    places = [{"rank": n, "pid": rank.pid, "log": str(folder / f"{n}.log")} for n, rank in enumerate(ranks)]
    for message in (begin, {"do": ToSampler.RANKS, "ranks": places}):
        ours.sendall(json.dumps(message).encode() + b"\n")
    return process, ours


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, and of the processes that it started and that still run."""
    own = sum(map(int, linux.stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")
    children = linux.read(pid, f"task/{pid}/children").split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    python = peers()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = []
        for number in range(RANKS):
            with (folder / f"{number}.log").open("wb") as log:
                ranks.append(subprocess.Popen([sys.executable, "-c", RANK], stdout=log, start_new_session=True))
        pids = [str(rank.pid) for rank in ranks]
        process, ours = sampler(folder, ranks)
        watchers = {
            "serried": process,
            "nvitop": subprocess.Popen([python, "-c", NVITOP, *pids]),
            "wandb": subprocess.Popen([python, "-c", WANDB], cwd=folder),
        }
        try:
            time.sleep(WARM)
            before = {watcher: cpu_seconds(it.pid) for watcher, it in watchers.items()}
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                ours.recv(1 << 20)
            share = {
                watcher: 100 * (cpu_seconds(it.pid) - before[watcher]) / seconds for watcher, it in watchers.items()
            }
            lines = (folder / "node-0" / "samples.jsonl").read_bytes().splitlines()
        finally:
            for rank in ranks:
                os.killpg(rank.pid, 9)
            for it in watchers.values():
                it.terminate() if it is not process else it.kill()
            for it in (*ranks, *watchers.values()):
                it.wait()
    hour = PERIODS_OF_AN_HOUR * max(map(len, lines)) / 1e6
    record(
        "Sampling",
        [
            Figure(
                f"processor time for {RANKS} ranks with {WORKERS} workers each, every {EVERY} s",
                f"{share['serried']:.2f}% of a core",
                f"nvitop's collector, of the node alone: {share['nvitop']:.2f}%; "
                f"wandb's system metrics: {share['wandb']:.2f}%",
                "≤ 0.5%",
                share["serried"] <= 0.5,
            ),
            Figure(f"data of an hour, {RANKS} ranks", f"{hour:.2f} MB", "nothing to compare", "≤ 1 MB", hour <= 1),
        ],
    )


if __name__ == "__main__":
    main()
