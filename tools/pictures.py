"""Renew the pictures of the pages: `python tools/pictures.py docs/pictures`, or `… watch web report sweep bench`.

Each is real: a training of two ranks, a sweep and a bench in a lab with two nodes. A terminal becomes an SVG, a page in
Chromium a PNG. Some minutes on two idle cores; figures of a busy machine look strange.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
SERRIED = (sys.executable, "-m", "serried")
IN_LAB = (*SERRIED, "lab", "run", "--name", "picture", "--", *SERRIED)
TERMINAL = {"COLORTERM": "truecolor", "TERM": "xterm-256color"}
STEPS_BEFORE, LONGEST_WAIT = 400, 900.0
LARGEST = 150_000
"""Bytes of a picture."""
FONT_FACE = re.compile(r"(?s)\s*@font-face \{.*?\}")
"""Fonts from an outside server: a picture takes the reader's own fixed-width font."""


def serried(*words: str) -> str:
    return subprocess.run([*IN_LAB, *words], capture_output=True, text=True, check=True).stdout


def training(epochs: int) -> None:
    """Start one, and wait until it has a curve."""
    serried("submit", "-y", "--nodes", "2", "--name", "digits", "--", "python", "train.py", "--epochs", str(epochs))
    give_up = time.monotonic() + LONGEST_WAIT
    while serried("metrics", "last").count("\n") < STEPS_BEFORE and time.monotonic() < give_up:
        time.sleep(5)


def terminal(*words: str, columns: int = 80) -> str:
    """What a command prints on a terminal, as SVG."""
    os.environ |= {**TERMINAL, "COLUMNS": str(columns), "LINES": "50"}
    printed = b""

    def read(descriptor: int) -> bytes:
        nonlocal printed
        new = os.read(descriptor, 65536)
        printed += new
        return new

    pty.spawn([*IN_LAB, *words], read)
    text = printed.decode().replace("\r\n", "\n").rstrip()
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.from_ansi(text))
    return FONT_FACE.sub("", console.export_svg(title=" ".join(("serried", *words))))


def watch(folder: Path) -> None:
    os.environ |= {
        **TERMINAL,
        "COLUMNS": "100",
        "LINES": "26",
        "TEXTUAL_SCREENSHOT": "15",  # seconds
        "TEXTUAL_SCREENSHOT_LOCATION": str(Path.cwd()),
        "TEXTUAL_SCREENSHOT_FILENAME": "watch.svg",
    }
    pty.spawn([*IN_LAB, "watch", "last"])
    picture = FONT_FACE.sub("", Path("watch.svg").read_text(encoding="utf-8")).replace("WatchApp", "serried watch")
    (folder / "watch.svg").write_text(picture, encoding="utf-8")


def web(folder: Path) -> None:
    """The page of the training in a browser."""
    with (
        subprocess.Popen(
            [*IN_LAB, "watch", "--web"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as page,
        sync_playwright() as playwright,
    ):
        lines = iter(page.stdout or ())
        address = next(found[0] for line in lines if (found := re.search(r"http://\S+#token=\S+", line)))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 760})
        tab.goto(address)
        tab.locator("td a").first.click()
        tab.wait_for_timeout(5000)
        tab.screenshot(path=folder / "web.png")
        browser.close()
        page.terminate()
    # Curves and text have few colours.
    Image.open(folder / "web.png").convert("RGB").quantize(64).save(folder / "web.png", optimize=True)


def report(folder: Path) -> None:
    (folder / "report.svg").write_text(terminal("report", "digits"), encoding="utf-8")


def sweep(folder: Path) -> None:
    ranges = ("--grid", "lr=1e-3,4e-3,1e-2", "--grid", "width=16,24", "--metric", "accuracy:max")
    serried("sweep", "digits", *ranges, "--set", "config.epochs=4", "--parallel", "2", "-y")
    serried("wait", "last")
    (folder / "sweep.svg").write_text(terminal("sweep", "show", "last"), encoding="utf-8")


def bench(folder: Path) -> None:
    serried(
        "bench", "scaling", "digits", "--nodes", "1,2", "--set", "config.epochs=4", "--parallel", "1", "--wait", "-y"
    )
    serried("bench", "show", "--plot", str(folder / "bench.svg"))


ALL: dict[str, Callable[[Path], None]] = {"watch": watch, "web": web, "report": report, "sweep": sweep, "bench": bench}
OF_A_TRAINING = {"watch", "web", "report"}


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        os.environ |= dict.fromkeys(("XDG_DATA_HOME", "XDG_STATE_HOME"), f"{place}/home")
        subprocess.run([*SERRIED, "lab", "up", "--name", "picture", "--nodes", "2", "--gpus", "0"], check=True)
        try:
            os.chdir(shutil.copytree(EXAMPLE, Path(place, "digits")))
            if OF_A_TRAINING & set(names):
                training(epochs=400)
            for name in names:
                ALL[name](folder)
                if OF_A_TRAINING & set(names[: names.index(name) + 1]) == OF_A_TRAINING & set(names):
                    subprocess.run([*IN_LAB, "stop", "--now", "-y", "digits"], check=False)
        finally:
            os.chdir(folder)
            subprocess.run([*SERRIED, "lab", "down", "picture"], check=True)
    large = [path.name for path in folder.iterdir() if path.stat().st_size > LARGEST]
    if large:
        sys.exit(f"larger than {LARGEST:,} bytes: {', '.join(large)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:] or list(ALL))
