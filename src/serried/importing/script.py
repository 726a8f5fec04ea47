"""Whether a file is a job script at all."""

from __future__ import annotations

import re
from pathlib import PurePath

from serried.errors import UsageError
from serried.importing.body import submitted

MOST_BYTES = 256 * 1024
_DIRECTIVE = re.compile(r"^\s*#(?:SBATCH|PBS)\b", re.MULTILINE)
_SCRIPT = re.compile(r"[\w./-]+\.(?:sh|bash|sbatch|slurm|job|pbs)(?![\w.])")


def text(content: bytes, file: str) -> str:
    """Its text. Raises UsageError for what is none: not bash, not text, or a script that only submits others."""
    if len(content) > MOST_BYTES:
        raise UsageError(f"`{file}` is not a job script: it has more than {MOST_BYTES // 1024} KiB")
    try:
        found = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"`{file}` is not a job script: it is not UTF-8 text") from None
    if "\0" in found:
        raise UsageError(f"`{file}` is not a job script: it holds NUL characters")
    found = found.replace("\r\n", "\n").replace("\r", "\n")
    first = found.split("\n", 1)[0]
    if first.startswith("#!") and not re.search(r"\b(ba|z|k|da)?sh\b", first):
        raise UsageError(
            f"`{file}` is read by `{first[2:].strip()}`, and only scripts of bash and its kin can be imported",
            hint=f"give it as the command: serried submit -- ./{PurePath(file).name}",
        )
    _check_is_job(found, file)
    return found


def _check_is_job(text: str, file: str) -> None:
    """A script that only asks a scheduler for jobs has nothing to do in one."""
    calls = [] if _DIRECTIVE.search(text) else submitted(text)
    if not calls:
        return
    first = calls[0].text
    given = _SCRIPT.search(first.partition("sbatch")[2] or first.partition("qsub")[2]) if len(calls) == 1 else None
    raise UsageError(
        f"`{file}` submits jobs and is none itself: line {calls[0].line} calls the scheduler",
        hint=f"import the script that it submits: `serried import {given[0] if given else 'SCRIPT'}`",
    )
