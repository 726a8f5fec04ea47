"""What Serried costs on a machine with one NVIDIA GPU: its samples, and ResNet-50 beside a loop by hand.

    python benchmarks/gpu.py        in an environment with Serried, torch and torchvision; five minutes on an H100

The page is written where the other scripts run: copy `benchmarks/results.json` there.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import Figure, record

from serried.agent.sampling.nvml import Nvml

EXAMPLE = Path(__file__).parents[1] / "examples" / "from-hpc-helper"
IMAGES = 5 * 60_000
"""In five epochs."""
COMMAND = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,power.draw", "--format=csv,noheader"]
LOAD = """
import torch

one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
other = one @ one
print("busy", flush=True)
while True:
    torch.mm(one, one, out=other)
    torch.cuda.synchronize()
"""
LOOP = """
import time, torch, torchvision
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, WARM = 25, 768, 5
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
model = torchvision.models.resnet50(num_classes=10)
model.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
model.to("cuda")
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
images = torch.randint(256, (BATCH, 1, 28, 28), dtype=torch.uint8)
labels = torch.randint(10, (BATCH,))
for step in range(WARM + STEPS):
    if step == WARM:
        torch.cuda.synchronize()
        began = time.perf_counter()
    scaled = images.to("cuda").float().div(255).sub(0.1307).div(0.3081)
    answers = model(F.interpolate(scaled, size=(128, 128), mode="bilinear", antialias=True))
    loss = F.cross_entropy(answers, labels.to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
torch.cuda.synchronize()
print(STEPS * BATCH / (time.perf_counter() - began))
"""


def cpu_ms(act: Callable[[], object], rounds: int) -> float:
    """Processor time of one `act`, with the processes that it starts."""

    def spent() -> float:
        whose = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in whose)

    act()
    began = spent()
    for _ in range(rounds):
        act()
    return 1000 * (spent() - began) / rounds


def sampled() -> tuple[float, float]:
    """Milliseconds of a sample by the library and by the command, while the GPU is busy."""
    with subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE) as load:
        try:
            assert load.stdout
            load.stdout.readline()
            time.sleep(2)  # until the driver's own means are those of the load
            return cpu_ms(Nvml(None).read, 500), cpu_ms(lambda: subprocess.check_output(COMMAND), 10)
        finally:
            load.kill()


def trained() -> float:
    """Images per second of `examples/from-hpc-helper` on one GPU."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "XDG_STATE_HOME": f"{folder}/state", "XDG_DATA_HOME": f"{folder}/data"}
        run = [sys.executable, "-m", "serried", "run", "resnet", "--gpus", "1"]
        done = subprocess.run(run, cwd=EXAMPLE, env=environ, capture_output=True, text=True, check=True)
    return IMAGES / float(re.findall(r"training took ([\d.]+) s", done.stdout)[0])


def machine() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    import torch

    system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    versions = f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    return f"{os.cpu_count()} cores, {system}, {versions}, {name}, driver {driver}"


def main() -> None:
    os.chdir(Path(__file__).parent)
    by_library, by_command = sampled()
    by_serried = trained()
    loop = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True)
    by_hand = float(loop.stdout)
    share = by_serried / by_hand
    record(
        "A GPU",
        [
            Figure(
                "processor time of a sample of a busy GPU, by `nvml`",
                f"{by_library:.2f} ms",
                f"one call of `nvidia-smi`: {by_command:.0f} ms",
                "≤ 1 ms",
                by_library <= 1,
            ),
            Figure(
                "images per second of ResNet-50 (`examples/from-hpc-helper`), sampled every 5 s, first step and "
                "loading included",
                f"{by_serried:,.0f}",
                f"a loop by hand with torchvision, without them: {by_hand:,.0f}; Serried has {share:.3f} of that",
                "≥ 0.98",
                share >= 0.98,
            ),
        ],
        on=machine(),
    )


if __name__ == "__main__":
    main()
