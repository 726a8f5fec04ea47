"""What it costs training that its checkpoints are copied meanwhile: the agents' service, and a loop of `rsync -a`.

One run of two ranks on two cores. Time goes in windows, one for each way in turns: at its beginning rank 0 writes a
checkpoint, the rest of it both ranks train. A window in which nothing is copied is what the two are compared with.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import SILENT, Figure, Timing, record

WINDOW = 20.0
CYCLES = 8
WAYS = ("alone", "serried", "rsync")
MEGABYTES = 256

TOML = """\
[clusters.local]
local_disk = "{disk}"
[experiments.train]
command = [{python}, {script}, "rank", "{{checkpoints}}"]
resources = {{ ranks = 2, cpus = 1 }}
checkpoint = {{ watch = ["{{checkpoints}}/*.pt"], sync_every = "1s", keep = 2 }}
"""


def rank(checkpoints: Path) -> None:
    """Train and save; write down how long each step of each window took."""
    import torch

    torch.set_num_threads(1)
    me, run = int(os.environ["RANK"]), Path(os.environ["SERRIED_RUN_DIR"])
    begin = run.joinpath("plan.json").stat().st_mtime + 40
    elsewhere = {way: checkpoints.parent / way for way in WAYS}
    elsewhere["serried"] = checkpoints
    kept = run / "rsync"
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 512), torch.randint(10, (64,))
    state = {"weights": torch.randn(MEGABYTES << 18)} if me == 0 else {}
    steps: list[float] = []
    busy: list[float] = []
    saved: list[float] = []
    copied: list[float] = []
    while time.time() < begin:
        time.sleep(0.01)
    for window in range(CYCLES * len(WAYS)):
        way, end = WAYS[window % len(WAYS)], begin + (window + 1) * WINDOW
        path = elsewhere[way] / f"{window}.pt"
        rsync = None
        if me == 0:
            path.parent.mkdir(exist_ok=True)
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            saved.append(time.time())
            if way == "rsync":
                rsync = subprocess.Popen(["rsync", "-a", f"{path.parent}/", f"{kept}/"])
        count, arrived = 0, 0.0
        started, before = time.perf_counter(), time.process_time()
        while time.time() < end:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            count += 1
            if rsync is not None and not arrived and count % 64 == 0 and rsync.poll() is not None:
                arrived = time.time()
        steps.append((time.perf_counter() - started) / count)
        busy.append((time.process_time() - before) / count)
        copied.append(arrived)
        if rsync is not None:
            rsync.wait()
            path.unlink()
            (kept / path.name).unlink()
    Path(os.environ["SERRIED_RESULTS_DIR"], f"{me}.json").write_text(
        json.dumps([steps, saved, copied, cpu_seconds(), busy])
    )


def cpu_seconds() -> tuple[float, float]:
    """Of the service beside us, and of every rsync that we have started."""
    service = 0.0
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words, facts = (each / "cmdline").read_bytes(), (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"\0bring\0" in words and int(facts[1]) == os.getppid():
            service = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return service, children.ru_utime + children.ru_stime


def measured() -> tuple[dict[str, list[float]], dict[str, list[float]], tuple[float, float]]:
    """Of each way the mean steps of its windows, both ranks together; until a copy was there; what copying took."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        words = {"disk": f"{folder}/disk", "python": json.dumps(sys.executable), "script": json.dumps(__file__)}
        project.joinpath("serried.toml").write_text(TOML.format(**words))
        environ = {**os.environ, "SCRATCH": folder, "XDG_STATE_HOME": f"{folder}/state"}
        serried = [sys.executable, "-m", "serried"]
        subprocess.run([*serried, "run", "train"], cwd=project, env=environ, check=True, **SILENT)
        shown = subprocess.run([*serried, "show", "last", "--json"], env=environ, check=True, capture_output=True)
        place = Path(json.loads(shown.stdout)["runs"][0]["directory"])
        ranks = [json.loads((place / "results" / f"{number}.json").read_text()) for number in (0, 1)]
        journal = (place / "attempts/1/node-0/events.jsonl").read_text().splitlines()
        brought = [event for event in map(json.loads, journal) if event["event"] == "brought"]
    means: dict[str, list[float]] = {way: [] for way in (*WAYS, *map(busy_of, WAYS))}
    came = {name: event["t"] for event in brought for name in event["names"]}
    delays: dict[str, list[float]] = {way: [] for way in WAYS}
    for window in range(CYCLES * len(WAYS)):
        way = WAYS[window % len(WAYS)]
        means[way].append(statistics.mean(each[0][window] for each in ranks))
        means[busy_of(way)].append(statistics.mean(each[4][window] for each in ranks))
        arrived = came.get(f"{window}.pt", math.inf) if way == "serried" else ranks[0][2][window]
        delays[way].append(arrived - ranks[0][1][window])
    return means, delays, ranks[0][3]


def busy_of(way: str) -> str:
    return f"{way}, processor time"


def ratios(means: dict[str, list[float]], way: str, alone: str) -> tuple[float, str]:
    """Of each window and the one of its turn in which nothing was copied: the upper quartile, and all in words."""
    each = [own / other for own, other in zip(means[way], means[alone], strict=True)]
    low, median, high = statistics.quantiles(each, n=4)
    return high, f"{median:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    means, delays, (service, rsync) = measured()
    (own, spelled), (_, peer) = ratios(means, "serried", "alone"), ratios(means, "rsync", "alone")
    (busy, spelled_busy), (_, peer_busy) = (ratios(means, busy_of(way), busy_of("alone")) for way in WAYS[1:])
    steps = {f"step, {way}": Timing.of(each) for way, each in means.items()}
    there = {way: statistics.median(each) for way, each in delays.items()}
    size = f"{MEGABYTES} MiB"
    figures = [
        Figure(
            f"a training step where a checkpoint of {size} is written every {WINDOW:g} s and copied, 2 ranks",
            f"{spelled} of a step where nothing is copied, {steps['step, alone']}",
            f"`rsync -a` after each: {peer}",
            "≤ 1.05",
            own <= 1.05,
        ),
        Figure(
            "processor time of such a step",
            f"{spelled_busy} of a step where nothing is copied",
            f"`rsync -a`: {peer_busy}",
            "≤ 1.05",
            busy <= 1.05,
        ),
        Figure(
            "until the copy is there, from when it was written",
            f"{there['serried']:.1f} s" if there["serried"] < WINDOW else f"more than {WINDOW:g} s",
            f"`rsync -a` at once: {there['rsync']:.1f} s; every 600 s, as the KAUST job has it: up to 600 s",
            "",
            kept=max(delays["serried"]) < WINDOW,
        ),
        Figure(
            "processor time for each checkpoint, looking and copying",
            f"{service / CYCLES:.2f} s, of {2 * WINDOW * len(WAYS):g} s that both cores have",
            f"`rsync -a`: {rsync / CYCLES:.2f} s",
            "",
            service <= 2 * rsync,
        ),
    ]
    record("Checkpoints of other programs, copied while they train", figures, steps)


if __name__ == "__main__":
    rank(Path(sys.argv[2])) if len(sys.argv) > 1 else main()
