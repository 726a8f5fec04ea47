"""Pages whose `console` blocks are commands with what they print."""

from __future__ import annotations

import re
from collections.abc import Callable

BLOCK = re.compile(r"(?ms)^```console\n(.*?)^```$")
COMMAND = re.compile(r"(?m)^\$ (.*)$")
RUN_ID = re.compile(r"submitted (\w{6}) |files are in \S*/(\w{6})$|-(\w{6})-1\b", re.MULTILINE)
VARYING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "DATE",
    r"\b\d+(?:\.\d+)? ?s\b|\b\d+[mh]\d\d[ms]?\b|\bjust now\b|\b\d+[smh] ago\b": "DURATION",
    r"\bjob \d+": "job N",
    r"\bslurm +\d+\b": "slurm N",  # the column JOB
    r"\bloss \d\.\d+": "loss N",
    r"\bstep[ -]\d+\b": "step N",
    r"\bof attempt \d+": "of attempt N",
    r" {2,}": "  ",
    r"(?m)^\w{6} \S+ PENDING[:;] .*\n": "",  # printed only while no attempt runs
}
REST = "…"
"""A line for any number of lines that the page leaves out."""


def renew(page: str, run: Callable[[str], str]) -> str:
    """The page with what each command prints now, where that differs by more than times and losses. Ids stay."""
    known: dict[str, str] = {}

    def renew_block(block: re.Match[str]) -> str:
        _, *parts = COMMAND.split(block[1])
        outputs = (
            f"$ {command}\n{_renew_output(shown[1:], run(command), known)}"
            for command, shown in zip(parts[::2], parts[1::2], strict=True)
        )
        return f"```console\n{''.join(outputs).rstrip()}\n```"

    return BLOCK.sub(renew_block, page)


def _renew_output(shown: str, printed: str, known: dict[str, str]) -> str:
    known |= zip(_ids(printed), _ids(shown), strict=False)
    for run, name in known.items():
        printed = printed.replace(run, name)
    lines = [".*" if line == REST else re.escape(line) for line in _bare(shown).split("\n")]
    if re.fullmatch("\n".join(lines), _bare(printed), re.DOTALL):
        return shown
    new = printed.strip("\n")
    if lines[-1] == ".*":
        new = "\n".join([*new.split("\n")[: len(lines) - 1], REST])
    return f"{new}\n\n"


def _ids(text: str) -> list[str]:
    return list(dict.fromkeys(next(filter(None, groups)) for groups in RUN_ID.findall(text)))


def _bare(text: str) -> str:
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return text.strip("\n")
