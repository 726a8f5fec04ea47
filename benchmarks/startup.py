"""How long Serried takes to say anything: a login node's shared file system makes every import dear."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from measure import Figure, alternate, environment, record, seconds

EMPTY_CLICK = """
import click

@click.group()
def main(): "Nothing."

@main.command()
def nothing(): "Does nothing."

main()
"""


def main() -> None:
    bin_ = environment()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.py")
        empty.write_text(EMPTY_CLICK)
        timings = alternate(
            {
                "serried --help": partial(seconds, [bin_ / "serried", "--help"]),
                "empty click program --help": partial(seconds, [bin_ / "python", empty, "--help"]),
                "import serried": partial(seconds, [bin_ / "python", "-c", "import serried"]),
                "bare python": partial(seconds, [bin_ / "python", "-c", "pass"]),
                "import submitit": partial(seconds, [bin_ / "python", "-c", "import submitit"]),
            },
            rounds=25,
        )
    help_, empty_help = timings["serried --help"], timings["empty click program --help"]
    import_, bare = timings["import serried"], timings["bare python"]
    record(
        "Start-up",
        [
            Figure(
                "`serried --help`",
                str(help_),
                f"an empty click program: {empty_help}; {help_.median / empty_help.median:.2f} times as long",
                "≤ 45 ms or ≤ 1.6 times the empty program, whichever is more",
                help_.median <= max(45, 1.6 * empty_help.median),
                help_.median / empty_help.median,
                1.6,
            ),
            Figure(
                "`import serried`, over bare Python",
                f"{import_.median - bare.median:.1f} ms",
                f"bare `python -c pass`: {bare}; `import submitit`: {timings['import submitit']}",
                "≤ 10 ms",
                import_.median - bare.median <= 10,
            ),
        ],
        timings,
    )


if __name__ == "__main__":
    main()
