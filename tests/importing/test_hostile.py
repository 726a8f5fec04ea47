"""Text that is no good job script: an error that says so, or a file that loads. Nothing else, ever."""

from __future__ import annotations

import random
import tempfile
import tomllib
from pathlib import Path

import pytest

from imported_scripts import SCRIPTS
from serried import importing
from serried.base.errors import UsageError
from serried.config import definitions
from tables import for_each

PIECES = [
    "#SBATCH ", "#PBS ", "-l ", "--array=", "-J ", "--gres=gpu:", "--mem=", "=", ":", ",", "1", "0", "99999999999",
    "-", "%", "srun ", "torchrun ", "mpirun -np ", "python ", "horovodrun ", "singularity exec ",
    "accelerate launch ", "-m ", "torch.distributed.launch ", "conda activate ", "module ", "source ", "export ",
    "eval ", "cd ", "A=", "A+=(", ")", "$A", '"$A"', "${A[@]}", "${A[", "$((A + 1))", "$(", "`", "'", '"', "\\",
    "\\\n", "\n", "\r\n", "\t", " ", ";", "&", "&&", "|", "<", ">", "<<END\n", "END\n", "(", "{", "}", "if ", "then ",
    "fi", "for x in ", "do ", "done", "case ", "in ", "esac", "f() ", "function ", "{element}", "{{run}}", "é", "☃",
    "\u0000", "\u0007", "\u007f", "\ufeff", "#", "!", "*", "~", "[", "]", "'''", '"""', "wandb agent ", "bash -c ",
    "exec ", "env ", "-- ", "--", "=x ", "$1", "$@", "SLURM_NTASKS", "$SLURM_NTASKS",
]  # fmt: skip


def imported(content: bytes) -> importing.Imported:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.sh").write_bytes(content)
        return importing.read("job.sh", Path(folder))


def import_or_refuse(content: bytes) -> None:
    """A script that can be read loads; another is refused with a sentence."""
    try:
        made = imported(content)
    except UsageError:
        return
    written = tomllib.loads(made.text)
    assert {place[1] for place, _ in definitions.check(written) if place[0] == "experiments"} == {made.name}


@for_each("seed", range(8))
def test_any_text_is_imported_or_refused(seed: int):
    draw = random.Random(seed)
    for _ in range(40):
        text = "".join(draw.choices(PIECES, k=draw.randrange(1, 60))) + draw.choice(["", "\npython train.py"])
        import_or_refuse(b"#!/bin/bash\n" + text.encode())
        import_or_refuse(text.encode())
        import_or_refuse(draw.randbytes(draw.randrange(60)))


@for_each("script", SCRIPTS)
def test_a_script_that_is_cut_anywhere_is_imported_or_refused(script: Path):
    content = script.read_bytes()
    for end in range(0, len(content), 61):
        import_or_refuse(content[:end])
        import_or_refuse(content[end:])


@for_each(
    "content",
    [b"(" * 20_000, b"$(" * 20_000, b"if " * 20_000, b"'" * 19_999, b"a=(" * 20_000, b"\\\n" * 20_000, b"`" * 19_999],
)
def test_what_is_nested_without_end_ends_no_process(content: bytes):
    import_or_refuse(content)


@for_each(
    ("content", "message"),
    [
        (b"", "`job.sh` is empty"),
        (b"python a.py\n", "`job.sh` does not begin with `#!` and an interpreter"),
        (b"\x7fELF\x02\x01\x01\x00\xff", "`job.sh` does not begin with `#!` and an interpreter"),
        (b"#!/bin/sh\na\0b", "`job.sh` contains NUL characters"),
        (b"#!/bin/sh\n" + b"#\n" * 6_000_000, "job.sh` is larger than 10 MB, which no job script is"),
        (b"#SBATCH -t 1\nmkdir x\n", "`job.sh` does not begin with `#!` and an interpreter"),
        (b"#!/bin/sh\n#SBATCH -t 1\r\nx\r\n", "`job.sh` has DOS line breaks (CR LF)"),
        (
            b"#!/bin/sh\n#SBATCH -t 1\n#SBATCH hetjob\n",
            "line 3 of `job.sh`: Serried does not support heterogeneous jobs",
        ),
        (b"#!/bin/sh\n#SBATCH --time=soon\n", "line 2 of `job.sh`: `soon` is not a time limit"),
    ],
)
def test_a_file_that_is_not_a_job_script_is_refused_with_the_reason(content: bytes, message: str):
    with pytest.raises(UsageError) as caught:
        imported(content)
    assert message in caught.value.message


@for_each(
    ("script", "edits"),
    [
        ("if a; then " * 2000 + "sbatch $0" + "; fi" * 2000, 1),
        ("while true; do\n" + "cp a b\n" * 2000 + "sleep 1\ndone &", 1),
        ("nvtop &\nP=$!\nkill $P\n" * 1000, 3000),
        ("".join(f"f{n}() {{ scontrol requeue 1; }}\ntrap f{n} USR1\n" for n in range(1000)), 2000),
        ("sbatch $0 && " * 2000 + "true", 1),
        (f"A={'$A' * 5000}\n" + "cp $A $TMPDIR\n" * 100, 100),
    ],
)
def test_a_suggestion_for_very_many_lines_is_made(script: str, edits: int):
    [suggestion] = imported(f"#!/bin/bash\n{script}\n".encode()).suggestions
    assert len(suggestion.edits) == edits


def test_five_thousand_lines_are_read():
    lines = "".join(f'cp "data {number}" $SLURM_TMPDIR\n' for number in range(5000))
    [suggestion] = imported(f"#!/bin/bash\n{lines}python t.py\n".encode()).suggestions
    assert (len(suggestion.edits), suggestion.toml[-13:]) == (5000, ' "data 4999"]')


@for_each(
    "text",
    [
        "export WANDB_API_KEY=canary-7\npython a.py",
        "#SBATCH --export=ALL,API_TOKEN=canary-7\npython a.py",
        "#PBS -v SECRET=canary-7\npython a.py",
        "wandb login canary-7\npython a.py",
        "huggingface-cli login --token canary-7\npython a.py",
        "HF_TOKEN='canary-7'\npython a.py",
        "MY_PASSWORD=canary-7 python a.py",
        "srun --export=ALL,MY_KEY=canary-7 python a.py",
        "mpirun -x MY_KEY=canary-7 python a.py",
        'if true; then\n export GITHUB_TOKEN="canary-7"\nfi\npython a.py',
    ],
)
def test_the_value_of_a_secret_is_neither_written_nor_shown(text: str):
    made = imported(f"#!/bin/bash\n{text}".encode())
    assert "canary" not in made.text
    assert "canary" not in str(made)
