"""Renew docs/watch.svg: `serried watch`, drawn by Textual, beside a real training on two nodes of a lab.

python tools/watch_picture.py docs/watch.svg
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits"
SERRIED = (sys.executable, "-m", "serried")
IN_LAB = (*SERRIED, "lab", "run", "--name", "picture", "--", *SERRIED)
SIZE = {"COLUMNS": "100", "LINES": "26"}
STEPS_BEFORE, LONGEST_WAIT = 400, 900.0
FONT_FACE = re.compile(r"(?s)\s*@font-face \{.*?\}")
"""Fonts from an outside server: the picture takes the reader's own fixed-width font."""


def draw(project: Path) -> str:
    subprocess.run([*IN_LAB, "submit", "-y", "--nodes", "2", "--", "python", "train.py", "--epochs", "400"], check=True)
    give_up = time.monotonic() + LONGEST_WAIT
    while not has_curve() and time.monotonic() < give_up:
        time.sleep(5)
    os.environ |= {
        **SIZE,
        "COLORTERM": "truecolor",
        "TERM": "xterm-256color",
        "TEXTUAL_SCREENSHOT": "15",  # seconds
        "TEXTUAL_SCREENSHOT_LOCATION": str(project),
        "TEXTUAL_SCREENSHOT_FILENAME": "watch.svg",
    }
    pty.spawn([*IN_LAB, "watch", "last"])
    return FONT_FACE.sub("", (project / "watch.svg").read_text(encoding="utf-8")).replace("WatchApp", "serried watch")


def has_curve() -> bool:
    shown = subprocess.run([*IN_LAB, "metrics", "last"], capture_output=True, text=True, check=False).stdout
    return shown.count("\n") > STEPS_BEFORE


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(shutil.copytree(EXAMPLE, Path(folder, "digits")))
        os.environ |= dict.fromkeys(("XDG_DATA_HOME", "XDG_STATE_HOME"), f"{folder}/home")
        subprocess.run([*SERRIED, "lab", "up", "--name", "picture", "--nodes", "2", "--gpus", "0"], check=True)
        try:
            here = Path.cwd()
            os.chdir(project)
            picture = draw(project)
            os.chdir(here)
        finally:
            subprocess.run([*SERRIED, "lab", "down", "picture"], check=True)
    target.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
