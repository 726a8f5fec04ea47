"""What runs in place of a launcher, as a real process, and whether a script reads the status of a call."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from serried.agent.launchers.interception import reads_status
from tables import for_each

SH = "#!/bin/sh\nprintf '<%s>' \"$@\"\necho\n"


class LaunchFolder:
    """A folder of a script with launchers in `bin/`, and the documents of its launches."""

    def __init__(self, agent_command, root) -> None:
        self.agent_command, self.root = agent_command, root
        self.shims, self.launches, self.bin = root / "shims", root / "launches", root / "bin"
        (self.shims / "bin").mkdir(parents=True)
        self.bin.mkdir()

    def add(self, name, text=SH):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *words, options=(), **variables):
        environment = {"PATH": f"{self.shims / 'bin'}:{self.bin}:/usr/bin:/bin", "SERRIED_LAUNCHES": str(self.launches)}
        return subprocess.Popen(
            [*self.agent_command, "launch", str(self.shims), *options, *words], env={**environment, **variables},
            cwd=self.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words, **options):
        """The launcher's output and errors."""
        process = self.start(*words, **options)
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        return output.replace(str(self.shims / "rank"), "RANK"), errors

    def documents(self, pattern="*.json"):
        return [json.loads(path.read_text()) for path in sorted(self.launches.glob(pattern))]


@pytest.fixture
def folder(agent_command, tmp_path):
    made = LaunchFolder(agent_command, tmp_path)
    made.add("srun")
    return made


def test_concurrent_launches_have_different_ids(folder):
    processes = [folder.start("srun", "true", str(number)) for number in range(8)]
    outputs = [process.communicate()[0] for process in processes]
    ids = sorted(int(output.split("<")[2].rstrip(">")) for output in outputs)
    assert ids == list(range(1, 9))
    words = {document["launch"]: document["argv"] for document in folder.documents()}
    assert {output.split("<", 2)[2] for output in outputs} == {
        f"{launch}><true><{argv[1]}>\n" for launch, argv in words.items()
    }


def test_launches_within_a_rank_are_numbered_there_so_that_ranks_on_all_nodes_agree(folder):
    for rank in ("0", "1"):
        within = {"SERRIED_LAUNCH": "2", "SERRIED_LAUNCH_RANK": rank}
        assert folder.run("srun", "true", **within)[0] == "<RANK><2.1><true>\n"
        assert folder.run("srun", "true", **within)[0] == "<RANK><2.2><true>\n"
        deeper = {"SERRIED_LAUNCH": "2.1", "SERRIED_LAUNCH_RANK": "3"}
    assert folder.run("srun", "true", **deeper)[0] == "<RANK><2.1.1><true>\n"
    names = [str(path.relative_to(folder.launches)) for path in sorted(folder.launches.glob("**/*.json"))]
    assert names == [
        "2/1/rank-3/1.json", "2/rank-0/1.json", "2/rank-0/2.json", "2/rank-1/1.json", "2/rank-1/2.json",
    ]  # fmt: skip
    assert folder.documents("2/rank-1/1.json")[0]["within"] == {"launch": "2", "rank": "1"}


BODY = "\nimport sys\nprint(sys.argv[1:])\n"
FIRST_LINES = [
    # how a launcher of Python begins
    "#!{python}",
    "#! {python} -s",
    "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''",
    "#!/bin/sh\n'''exec' \"{python}\" -s \"$0\" \"$@\"\n' '''",
    "#!/usr/bin/env python3",
    "#!/usr/bin/env -S python3 -u",
    "#!/usr/bin/env -S {python} -u",
]


@pytest.mark.parametrize("begin", FIRST_LINES)
def test_the_interpreter_of_a_python_launcher_is_that_of_its_first_line(begin, folder):
    python = folder.bin / "python3"
    python.symlink_to(sys.executable)
    folder.add("torchrun", begin.replace("{python}", str(python)) + BODY)
    assert folder.run("torchrun", "t.py")[0] == f"['--no-python', 'RANK', '1', '{python}', '-u', 't.py']\n"


@pytest.mark.parametrize("begin", ["#!/bin/bash", "#!/bin/sh\necho", "\x7fELF", ""])
def test_a_launcher_without_a_known_python_is_untouched(begin, folder):
    folder.add("torchrun", begin + "\n")
    folder.start("torchrun", "t.py").communicate()
    (document,) = folder.documents()
    assert document["untouched"] == f"`{folder.bin / 'torchrun'}` is not a Python script"


def test_a_launcher_that_python_is_to_run_has_that_python(folder):
    folder.add("torchrun", "import sys\nprint(sys.argv[1:])\n")
    output, _ = folder.run("torchrun", "t.py", options=["--with", sys.executable])
    assert output == f"['--no-python', 'RANK', '1', '{sys.executable}', '-u', 't.py']\n"


def test_a_launcher_without_a_first_line_runs_by_sh(folder):
    folder.add("srun", "echo plain $2\n")
    assert folder.run("srun", "true")[0] == "plain 1\n"


def test_a_launch_that_cannot_be_recorded_starts_untouched(folder):
    folder.launches.write_text("a file")
    output, errors = folder.run("srun", "true")
    assert output == "<true>\n"
    assert errors == f"serried: cannot record a launch: [Errno 17] File exists: '{folder.launches}'\n"


def test_notes_are_printed_once_for_each_reason(folder):
    assert folder.run("srun", "--pty", "true")[1] == (
        "serried: srun: option `--pty`; started without logs for its ranks\n"
    )
    assert folder.run("srun", "--pty", "true")[1] == ""
    assert folder.run("srun", "--new", "true")[1] == (
        "serried: srun: unknown option `--new`; started without logs for its ranks\n"
    )


def test_a_launcher_that_another_launcher_calls_is_left_alone(folder):
    rank = str(folder.shims / "rank")
    assert folder.run("srun", "-n2", rank, "1", "true") == ("<-n2><RANK><1><true>\n", "")
    assert folder.documents() == []


def test_another_job_and_options_in_variables_are_left_alone(folder):
    of_job = {"SERRIED_SCRIPT_JOB": "SLURM_JOB_ID=5", "SLURM_JOB_ID": "5"}
    assert folder.run("srun", "--jobid=6", "true", **of_job)[0] == "<--jobid=6><true>\n"
    assert folder.run("srun", "--jobid=5", "true", **of_job)[0] == "<--jobid=5><RANK><2><true>\n"
    assert folder.run("srun", "true", **{**of_job, "SLURM_JOB_ID": "6"})[0] == "<true>\n"
    folder.add("torchrun")
    assert folder.run("torchrun", "t.py", PET_MODULE="1")[0] == "<t.py>\n"


def test_a_program_that_is_not_there_is_for_the_launcher_to_report(folder):
    assert folder.run("srun", "./nowhere")[0] == "<./nowhere>\n"


def test_a_launcher_that_is_not_there_is_not_found(folder):
    process = folder.start("mpirun", "true", PATH=str(folder.bin))
    assert process.communicate() == ("", "mpirun: command not found\n")
    assert process.returncode == 127


def test_names_of_the_functions_do_not_reach_the_launcher(folder):
    folder.add("srun", "#!/bin/sh\nenv | grep __serried_ || echo none\n")
    assert folder.run("srun", "true", __serried_path="x")[0] == "none\n"


SCRIPT = """\
srun a; code=$?
srun b
if [ $? -ne 0 ]; then echo no; fi
srun c \\
  --long | tee log

# what became of it
codes=(${PIPESTATUS[@]})
srun d
echo done
train() {
  srun e
}
train
status=$?
train
echo $status
"""


@for_each(
    ("script", "lines", "reads"),
    [
        (SCRIPT, [1], True),
        (SCRIPT, [2], True),
        (SCRIPT, [4], True),
        (SCRIPT, [9], False),
        (SCRIPT, [12, 14], True),
        (SCRIPT, [12, 16], False),
        (SCRIPT, [99], False),
        (SCRIPT, [], False),
        ("", [1], False),
        # The status of a background call is that of its wait.
        ("srun a & P=$!\nwait $P || echo no", [1], True),
        ("srun a &\npids+=($!)\nfor p in ${pids[@]}; do wait $p; done", [1], True),
        ("srun a &\nsrun b &\nwait", [1], False),
        ("srun a && srun b\nwait $x", [1], False),
        ("srun a >log 2>&1\nwait -n", [1], False),
        # An inverted status is handled.
        ("! srun a\necho done", [1], True),
        ("X=1; ! Y=2 srun a | tee log\necho done", [1], True),
        ("for i in 1; do ! $LAUNCHER a; done\necho done", [1], True),
        ("! [ -e done ] && srun a\necho done", [1], False),
        ("srun a ! srun\necho done", [1], False),
        ("! srunner x; srun a\necho done", [1], False),
    ],
)
def test_a_status_that_is_read_is_handled(script: str, lines: list[int], reads: bool):
    assert reads_status(script.splitlines(), lines, "srun") is reads
