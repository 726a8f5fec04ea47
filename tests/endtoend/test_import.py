"""A script is given to sbatch, then imported and submitted: its program finds the same both times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = f"""\
#!/bin/bash
#SBATCH --job-name=who
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --mem=500M
#SBATCH --time=5

cd "$SLURM_SUBMIT_DIR"
export GREETING="a  b" LATER=$HERE/later
if [ -n "$HERE" ]; then export GREETING="$GREETING!"; fi
LR=0.1
NAMES=(first second)
ARGS=(--lr $LR
  --name "it's $GREETING" '{{"seed": 1}}')
MODE=alone
case $SLURM_NNODES in
  1) ;;
  *) MODE="with others"; for node in x y; do ARGS+=(--node "$node"); done ;;
esac
ulimit -n 512
srun {sys.executable} who.py "${{ARGS[@]}}" --nodes $SLURM_NNODES \
  ${{NAMES[1]}} $((SLURM_NTASKS + 1)) {{seed}} "$MODE"
"""
WHO = """\
import json, os, resource, sys
from pathlib import Path

names = ("PROCID", "LOCALID", "NTASKS", "NNODES")
found = {
    "argv": sys.argv[1:],
    "folder": os.getcwd(),
    "variables": {name: os.environ[name].replace(os.environ["HERE"], "HERE") for name in ("GREETING", "LATER")},
    "slurm": {name: os.environ[f"SLURM_{name}"] for name in names},
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
}
Path(os.environ["HERE"], os.environ["SLURM_PROCID"]).write_text(json.dumps(found))
"""


def found(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


ARGV = [
    "--lr", "0.1", "--name", "it's a  b!", '{"seed": 1}', "--node", "x", "--node", "y", "--nodes", "2", "second", "5",
    "{seed}", "with others",
]  # fmt: skip


@pytest.mark.slurm
def test_an_imported_script_does_what_it_does_with_sbatch(slurm, tmp_path: Path):
    (slurm.project / "job.sh").write_text(SCRIPT)
    (slurm.project / "who.py").write_text(WHO)
    folders = [tmp_path / "sbatch", tmp_path / "serried"]
    for folder in folders:
        folder.mkdir()

    command = ["sbatch", "--wait", f"--output={tmp_path}/log", "job.sh"]
    environ = {**slurm.environ, "HERE": str(folders[0])}
    subprocess.run(command, cwd=slurm.project, env=environ, check=True, capture_output=True, timeout=120)

    slurm.serried("init", "--from", "job.sh")
    slurm.environ["HERE"] = str(folders[1])
    run = slurm.submit("who")
    assert slurm.wait(run)[0] == 0, slurm.serried("why", run).stdout

    there, here = map(found, folders)
    assert sorted(there) == ["0", "1", "2", "3"]
    assert there["3"]["argv"] == ARGV
    assert here == there
