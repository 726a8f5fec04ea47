"""Patterns that Serried has a feature for, and what to paste for each."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import tomllib
from pathlib import Path

from click import Context

from serried import importing
from serried.cli import serried
from serried.config import definitions
from tables import for_each

HEAD = "#!/bin/bash\n#SBATCH --time=1 --gres=gpu:4\n"
CASES = [
    (
        "checkpoint-watch",
        "while true; do rsync -a $X $Y; sleep 600; done &",
        'checkpoint.watch = ["{checkpoints}/*.pt"]',
    ),
    (
        "checkpoint-watch",
        "while kill -0 $PID; do\n  cp -r /tmp/ckpt out\n  sleep 60\ndone",
        'checkpoint.watch = ["{checkpoints}/*.pt"]',
    ),
    ("data-stage", "cp -r data $SLURM_TMPDIR/", 'data.stage = ["data"]'),
    ("data-stage", "rsync -a $SCRATCH/a /tmp/a", 'data.stage = ["$SCRATCH/a"]'),
    ("data-stage", "tar -xf ~/data.tar -C ${SLURM_TMPDIR}", 'data.stage = ["~/data.tar"]'),
    ("data-stage", "srun --ntasks-per-node=1 bash -c 'cp data.zip $SLURM_TMPDIR'", 'data.stage = ["data.zip"]'),
    ("data-stage", "L=$TMPDIR/x\nunzip data.zip -d $L", 'data.stage = ["data.zip"]'),
    ("data-stage", "cp a $TMPDIR\ncp b $TMPDIR", 'data.stage = ["a", "b"]'),
    ("data-stage", 'cp data.zip "$SLURM_TMPDIR/data/"', 'data.stage = ["data.zip"]'),
    ("data-stage", 'tar -cf "$SLURM_TMPDIR/a.tar" data', 'data.stage = ["data"]'),
    ("data-results", "cp -r $SLURM_TMPDIR/out results", 'data.results = ["*"]'),
    ("data-results", "L=/tmp/$SLURM_JOB_ID\nrsync -a $L/ out/", 'data.results = ["*"]'),
    ("data-results", "tar -cf out.tar -C $SLURM_TMPDIR out", 'data.results = ["*"]'),
    ("chain", "sbatch --dependency=afterok:$SLURM_JOB_ID $0", "serried submit 'my job' --chain 10"),
    ("chain", "N=$((N + 1)) sbatch job.sh", "serried submit 'my job' --chain 10"),
    ("chain", 'qsub "$0"', "serried submit 'my job' --chain 10"),
    ("chain", 'ssh login "cd $PWD; sbatch ${BASH_SOURCE[0]}"', "serried submit 'my job' --chain 10"),
    ("after", "sbatch evaluate.sh", "serried submit 'my job' && serried submit NEXT --after last"),
    ("restarts", "trap 'scontrol requeue $SLURM_JOB_ID' USR1", "limit.restarts = 5"),
    ("array", "for lr in 1 2; do sbatch one.sh $lr; done", "serried submit --commands commands.txt --parallel 8"),
    ("array", "for lr in 1 2; do\n  python t.py $lr\ndone", "serried submit --commands commands.txt --parallel 8"),
    ("runs", "python a.py\npython b.py", "serried submit --after last -- python next.py"),
    ("beside", "nvidia-smi dmon -s u > gpu.log &", 'beside = ["nvidia-smi dmon -s u"]'),
    ("beside", "while true; do nvidia-smi >> log; sleep 5; done &", 'beside = ["nvidia-smi dmon -s u"]'),
    (
        "beside",
        "nvidia-smi dmon &\ntensorboard --logdir $OUT --port 0 &",
        'beside = ["nvidia-smi dmon", {command = "tensorboard --logdir {results} --port 0", on = "first"}]',
    ),
    (
        "beside",
        "PORT=6006\ntensorboard --logdir=$OUT/tb --port $PORT --host $HOSTNAME &",
        'beside = [{command = "tensorboard --logdir={results} --port 6006 --host $HOSTNAME", on = "first"}]',
    ),
    ("data-stage", "D=/data/me\ncp -r $D/set $SLURM_TMPDIR", 'data.stage = ["/data/me/set"]'),
    ("chain", 'ME=${HOME}/job.sh\nssh login "cd x; sbatch --dependency=afterok:$SLURM_JOB_ID ${ME}"',
     "serried submit 'my job' --chain 10"),
    (
        "beside",
        "python -m jupyterlab_nvdashboard.server 8000 &",
        'beside = [{command = "python -m jupyterlab_nvdashboard.server 8000", on = "first"}]',
    ),
    (
        "rendezvous",
        "export MASTER_ADDR=$(hostname)\nsrun torchrun t.py",
        "serried submit --launch torchrun -- python train.py",
    ),
    ("secrets", "export A_KEY=canary\nexport HF_TOKEN='canary'", 'environment.secrets = ["A_KEY", "HF_TOKEN"]'),
    ("venv", "pip install -q -r requirements.txt", 'environment.venv = "requirements.txt"'),
    ("conda", "conda env create -f environment.yml", 'environment.conda = "environment.yml"'),
    ("container", "srun apptainer exec --nv a.sif python t.py", "serried submit --image a.sif -- python train.py"),
]  # fmt: skip


def imported_of(script: str, file: str = "job.sh", name: str | None = None) -> importing.Imported:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, file).write_text(script)
        return importing.read(file, Path(folder), name)


@for_each(("kind", "lines", "pasted"), CASES)
def test_a_pattern_has_its_feature_to_paste(kind: str, lines: str, pasted: str):
    imported = imported_of(f"{HEAD}{lines}\n", name="my job")
    assert imported.script == "job.sh"
    assert "canary" not in str(imported)
    found = {each.id: each for each in imported.suggestions}
    assert found.keys() - {"runs"} == {kind} - {"runs"}
    assert (found[kind].toml or found[kind].command) == pasted
    assert bool(found[kind].toml) != bool(found[kind].command)
    if found[kind].toml:
        list(definitions.check(tomllib.loads(f'[experiments."my job"]\ncommand = "x"\n{pasted}\n')))
    for command in found[kind].command.split(" && ") if found[kind].command else ():
        verb, *rest = shlex.split(command)[1:]
        parsed = serried.get_command(Context(serried), verb)
        assert parsed is not None
        parsed.make_context(verb, rest)


@for_each(
    "lines",
    [
        "cp a b",
        "# cp a $SLURM_TMPDIR",
        "nvidia-smi",
        "for node in $(scontrol show hostnames); do srun -w $node python t.py; done",
        "export MASTER_ADDR=$(hostname)",
        "python a.py &\npython b.py &\nwait",
        "export WANDB_API_KEY=",
    ],
)
def test_other_lines_have_none(lines: str):
    assert imported_of(f"{HEAD}{lines}\n").suggestions == ()


@for_each(
    ("lines", "edits"),
    [
        ("sbatch $0", ["delete line 3: `sbatch $0`"]),
        ("srun python t.py || sbatch $0", ["delete `|| sbatch $0` from line 3"]),
        ("sbatch $0; python t.py", ["delete `sbatch $0;` from line 3"]),
        ("python t.py\n[ $N -lt 3 ] && sbatch \\\n  $0", ["delete lines 4-5"]),
        ("if [ $N = 1 ]; then\n  echo again\n  sbatch $0\nfi", ["delete lines 3-6"]),
        ("if [ $N = 1 ]; then sbatch $0; fi", ["delete line 3: `if [ $N = 1 ]; then sbatch $0; fi`"]),
        ("if x; then\n  python t.py\nelse\n  sbatch $0\nfi", ["write `:` in place of `sbatch $0` in line 6"]),
        ("if x; then python t.py; else sbatch $0; fi", ["write `:` in place of `sbatch $0` in line 3"]),
        ("f() {\n  scontrol requeue 1\n  exit 0\n}\ntrap f USR1", ["delete lines 3-6", "delete line 7: `trap f USR1`"]),
        ("f() {\n  touch a\n  scontrol requeue 1\n}\ntrap f USR1", ["delete line 5: `scontrol requeue 1`"]),
        (
            "nvtop &\nTOP=$!\npython t.py\nkill $TOP 2>/dev/null",
            ["delete line 3: `nvtop &`", "delete line 4: `TOP=$!`", "delete line 6: `kill $TOP 2>/dev/null`"],
        ),
        ("while kill -0 $P; do\n  cp -r /tmp/c out\n  sleep 9\ndone", ["delete line 4: `cp -r /tmp/c out`"]),
        ("while true; do\n  cp -r /tmp/c out\n  sleep 9\ndone &", ["delete lines 3-6"]),
        ("export HF_TOKEN=canary", ["delete line 3: `export HF_TOKEN=…`"]),
        ("sbatch <<END\npython t.py\nEND", ["delete lines 3-5"]),
    ],
)
def test_a_suggestion_names_what_to_delete_from_the_script(lines: str, edits: list[str]):
    script = f"{HEAD}{lines}\n"
    [suggestion, *_] = imported_of(script, name="x").suggestions
    assert [str(edit) for edit in suggestion.edits] == edits
    rest = script.split("\n")
    for edit in suggestion.edits:
        if edit.is_part:
            rest[edit.line - 1] = rest[edit.line - 1].replace(edit.text.strip(), edit.instead)
        else:
            rest[edit.line - 1 : edit.last] = [edit.instead] + [""] * (edit.last - edit.line)
    bash = subprocess.run(["bash", "-n"], input="\n".join(rest), text=True, capture_output=True, check=False)
    assert (bash.returncode, bash.stderr) == (0, "")


SATORI = """#!/bin/bash
MYSCRIPT=/home/${USER}/foo.slurm
MYSUBDIR=/home/${USER}
JID=${SLURM_JOB_ID}
ssh service0001 "cd $MYSUBDIR; pwd; sbatch --dependency=afterok:${JID} ${MYSCRIPT}"
sleep 60
"""


@for_each(("file", "kind"), [("foo.slurm", "chain"), ("other.slurm", "after")])
def test_a_script_that_reads_its_job_is_a_job_script_whatever_else_it_submits(file: str, kind: str):
    imported = imported_of(SATORI, file)
    assert imported.script == file
    assert [(each.id, each.line) for each in imported.suggestions] == [(kind, 5)]
