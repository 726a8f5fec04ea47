"""The programs of `serried bench launch`, `checkpoint` and `allreduce`: `python -m serried.train.probes NAME OPTIONS`.

They travel with the training library, so the Python of the ranks needs torch and nothing else. Results are JSON files
in the results of the run.
"""

from __future__ import annotations

import time

BEGAN = time.time()

import json  # noqa: E402 - the first line is measured
import os  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, Callable, Dict, List  # noqa: E402

from serried.fs import files  # noqa: E402
from serried.protocol import names  # noqa: E402

LOCAL = "local"
"""In place of a folder: the node's own disk."""
WARM_UPS = 2
"""The first saves allocate memory, and the first all-reduces connect ranks."""
LEAST_SECONDS = 0.2
"""How long one size of an all-reduce is repeated."""
MOST_REPEATS = 1000
TENSORS = 64


def launch(options: Dict[str, Any]) -> None:  # noqa: ARG001 - as the others
    """One step of a small model. Each rank writes when it reached what."""
    import torch

    import serried.train as st

    at = {"first_line": BEGAN, "imports": time.time()}
    with st.session() as run:
        at["connection"] = time.time()
        model = run.wrap(torch.nn.Linear(8, 8))
        model(torch.zeros(1, 8, device=run.device)).sum().backward()
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        at["first_step"] = time.time()
        rank = run.rank
    _write(f"launch-{rank}.json", at)


def checkpoint(options: Dict[str, Any]) -> None:
    """Save `bytes` of state to each folder of `to`, by the library and by torch.save."""
    import torch

    import serried.train as st

    with st.session() as run:
        size = options["bytes"] // TENSORS // 4  # a file system that compresses must not win
        weights = Weights([torch.rand(size, device=run.device) for _ in range(TENSORS)])
        rows = [_saved(run, weights, place, options["rounds"]) for place in options["to"]]
        if run.is_main:
            _write("checkpoint.json", {"rows": rows})


class Weights:
    def __init__(self, tensors: List[Any]) -> None:
        self.tensors = tensors

    def state_dict(self) -> Dict[str, Any]:
        return {str(at): tensor for at, tensor in enumerate(self.tensors)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.tensors = list(state.values())


def _saved(run: Any, weights: Weights, place: str, rounds: int) -> Dict[str, Any]:
    import torch

    from serried.train.checkpoints import Checkpoints

    disk = os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    folder = Path(disk if place == LOCAL else place) / f".serried-bench-{os.environ.get(names.RUN_ID, os.getpid())}"
    row: Dict[str, Any] = {"to": str(folder.parent), "is_local": place == LOCAL}
    row["file_system"] = file_system(folder.parent)
    problem = ""
    try:
        files.make_directory(folder)
        files.write_text(folder / f"try-{run.rank}", "")
    except OSError as error:
        problem = error.strerror or str(error)
    if run.all_reduce_max(int(bool(problem))):
        return {**row, "problem": problem or "another rank cannot write there"}
    run.barrier()
    run.directory = folder
    checkpoints = Checkpoints(run, every=None, keep=2, weights=weights)
    taken: List[Dict[str, float]] = []
    try:
        for _ in range(WARM_UPS + rounds):
            checkpoints.step()
            began = _together(run)
            checkpoints.save()
            stall = time.perf_counter() - began
            checkpoints.wait()
            durable = time.perf_counter() - began
            began = _together(run)
            if run.is_main:
                with open(folder / "plain.pt", "wb") as file:  # noqa: PTH123
                    torch.save(weights.state_dict(), file)
                    file.flush()
                    os.fsync(file.fileno())
            run.barrier()
            plain = time.perf_counter() - began
            taken.append({"stall": _slowest(run, stall), "durable": _slowest(run, durable), "plain": plain})
    finally:
        checkpoints.close()
        run.barrier()
        if run.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return {**row, **{name: _median([one[name] for one in taken[WARM_UPS:]]) for name in taken[0]}}


def allreduce(options: Dict[str, Any]) -> None:
    """All-reduce float32 tensors of growing sizes, on the CPU by gloo and on GPUs by the backend of the session."""
    import torch
    import torch.distributed as dist

    import serried.train as st

    with st.session() as run:
        rows = []
        for device in dict.fromkeys(["cpu", run.device.type]):
            for size in sizes(options["from"], options["to"]):
                tensor = torch.zeros(size // 4, device=run.device if device == run.device.type else device)
                seconds, repeats = _repeated(run, lambda: dist.all_reduce(tensor), device)  # noqa: B023 - called here
                rows.append({"backend": _backend(run.backend, device), "bytes": size, "seconds": seconds, "n": repeats})
        if run.is_main:
            _write("allreduce.json", {"ranks": run.world_size, "rows": rows})


def sizes(least: int, most: int) -> List[int]:
    """Each four times the one before, and the largest in any case."""
    found = [most]
    while least < most:
        found.insert(-1, least)
        least *= 4
    return found


def _repeated(run: Any, act: Callable[[], Any], device: str) -> Any:
    """Seconds of one `act` on the slowest rank, and how often it ran."""
    import torch

    wait: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def of(count: int) -> float:
        wait()
        began = _together(run)
        for _ in range(count):
            act()
        wait()
        return _slowest(run, (time.perf_counter() - began) / count)

    guess = of(WARM_UPS)
    count = max(2, min(MOST_REPEATS, int(LEAST_SECONDS / max(guess, 1e-6))))
    return of(count), count


def _backend(text: str, device: str) -> str:
    """`cpu:gloo,cuda:nccl` has one for each device."""
    pairs = dict(part.split(":") for part in text.split(",") if ":" in part)
    return pairs.get(device, text)


def _together(run: Any) -> float:
    run.barrier()
    return time.perf_counter()


def _slowest(run: Any, seconds: float) -> float:
    return float(run.all_reduce_max(int(seconds * 1e9)) / 1e9)


def _median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]


def file_system(folder: Path) -> str:
    """The type of the file system of `folder`, as the mounts of this machine have it."""
    best, kind = "", "?"
    try:
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, found = line.split()[:3]
            place = place.replace("\\040", " ")
            inside = place == "/" or str(folder.resolve()) == place or str(folder.resolve()).startswith(place + "/")
            if inside and len(place) >= len(best):
                best, kind = place, found
    except OSError:
        pass
    return kind


def _write(name: str, value: Dict[str, Any]) -> None:
    results = Path(os.environ[names.RESULTS_DIR])
    files.make_directory(results)
    files.write_json(results / name, value)


if __name__ == "__main__":
    {"launch": launch, "checkpoint": checkpoint, "allreduce": allreduce}[sys.argv[1]](json.loads(sys.argv[2]))
