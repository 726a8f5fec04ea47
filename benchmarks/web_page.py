"""How fast the page of `serried watch --web` appears in Chromium for 1,000 runs, and how much it loads for that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Figure, Timing, record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

RUNS, ROUNDS = 1000, 9
GOAL_BYTES = 300_000
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LOADED = "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)"


def main() -> None:
    bin_ = Path(sys.executable).parent  # it has the libraries of the page, and those that drive a browser
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder, "state"))
        write_runs(Path(folder, "scratch"))
        server = subprocess.Popen(
            [bin_ / "serried", "watch", "--web", "--port", "29999"], stdout=subprocess.PIPE, text=True
        )
        try:
            server.stdout.readline()
            paints, rows, loaded = visits(server.stdout.readline().strip())
        finally:
            server.terminate()
            server.wait()
    paint, first_rows = Timing.of(paints), Timing.of(rows)
    figures = [
        Figure(
            f"`serried watch --web`, {RUNS:,} runs: rows in the browser",
            str(first_rows),
            f"first paint: {paint}",
            "≤ 1 s",
            first_rows.median <= 1000,
        ),
        Figure(
            "loaded until then",
            f"{loaded / 1000:.0f} kB",
            "the page, and the newest 100 runs",
            "≤ 300 kB",
            loaded <= GOAL_BYTES,
        ),
    ]
    record("The web page", figures, {"first paint": paint, "first rows": first_rows})


def visits(address: str) -> tuple[list[float], list[float], int]:
    """Seconds to the first paint and to the first rows of each visit, and the bytes loaded by then."""
    from playwright.sync_api import sync_playwright
    from ui.web.browser import PROGRAM

    paints, rows, loaded = [], [], 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        for _ in range(ROUNDS + 1):
            context = browser.new_context()
            page = context.new_page()
            page.route(re.compile(r"/api/runs\?$"), lambda route: route.abort())  # the rest of the list comes later
            page.goto(address)
            page.wait_for_selector("tbody tr")
            rows.append(page.evaluate("performance.now()") / 1000)
            paints.append((page.evaluate(PAINT) or 0.0) / 1000)
            loaded = int(page.evaluate(LOADED)) + 2_000  # the document itself
            context.close()
        browser.close()
    return paints[1:], rows[1:], loaded


def write_runs(root: Path) -> None:
    from building import RunOnDisk

    letters = str.maketrans("0123456789", "abcdefghij")
    for number in range(RUNS):
        RunOnDisk(root, f"{number:06d}".translate(letters), name=f"experiment-{number}", job=str(number)).ending()


if __name__ == "__main__":
    main()
