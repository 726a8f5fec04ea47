import errno
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from unittest.mock import ANY

import pytest

import serried
from command_line import here
from serried.base.errors import RunFailed, RunNotFoundError, SerriedWarning, UsageError


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os, sys, time\nprint('rank', os.environ.get('RANK', 0), *sys.argv[1:], flush=True)\n"
        "time.sleep(600 if 'wait' in sys.argv else 0)\nsys.exit(3 if 'fail' in sys.argv else 0)\n"
    )
    monkeypatch.chdir(folder)
    return folder


def test_what_the_package_exports_is_what_it_says():
    assert [name for name in serried.__all__ if getattr(serried, name, None) is None] == []
    assert sorted(set(serried.__all__)) == serried.__all__
    assert set(serried.__all__) <= set(dir(serried))
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        serried.sumbit  # noqa: B018


def test_every_error_is_exported():
    from serried.base import errors

    kinds = {name for name, it in vars(errors).items() if isinstance(it, type) and issubclass(it, errors.SerriedError)}
    assert kinds - set(serried.__all__) == set()


def test_each_key_of_the_resources_is_an_argument_and_no_other_word_is():
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpu'"):
        serried.submit("true", gpu=1)
    with pytest.raises(UsageError, match=r"`resources.mem_per_cpu` .*8X"):
        serried.submit("true", cluster="local", mem_per_cpu="8X", qos=None)


def fresh(program):
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(serried.__file__).parents[1])}
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=900).stdout


def test_importing_it_loads_next_to_nothing():
    loaded = fresh("import sys; before = set(sys.modules); import serried; print(*sorted(set(sys.modules) - before))")
    assert loaded.split() == ["__future__", "serried"]


@pytest.mark.runs
def test_a_run_is_submitted_waited_for_and_read(project):
    run = serried.submit(["python", "train.py", "a b"], ranks=2, cluster="local", name="first", directory=project)

    assert run.wait(900) == "COMPLETED"
    assert run.logs() == "rank 0 a b\n"
    assert run.logs(rank=1) == "rank 1 a b\n"
    assert (run.name, run.state, run.exit_code) == ("first", "COMPLETED", 0)
    assert (run.directory / "exit.json").exists()
    assert serried.runs() == [run] == [serried.find("last")]
    assert run.to_json()["id"] == run.id
    with pytest.raises(UsageError, match="no rank 2"):
        run.logs(rank=2)


@pytest.mark.runs
def test_what_the_command_line_warns_of_is_a_warning_and_can_be_made_an_error():
    command = ["python", "train.py", "$HOME"]
    with pytest.raises(UsageError, match=r"no shell expands `\$HOME`") as refused:
        serried.submit(command, cluster="local")
    assert (refused.value.code, refused.value.hint) == (
        "shell-syntax",
        "correct it, or pass `yes=True` to submit it as it is",
    )
    with pytest.raises(SerriedWarning, match=r"no shell expands `\$HOME`"):  # as all are in these tests
        serried.submit(command, cluster="local", yes=True)
    assert serried.runs() == []

    with pytest.warns(SerriedWarning, match=r"no shell expands `\$HOME`") as told:
        run = serried.submit(command, cluster="local", yes=True)
    assert [warning.filename for warning in told] == [__file__]
    assert (run.wait(900), run.logs()) == ("COMPLETED", "rank 0 $HOME\n")


@pytest.mark.runs
def test_settings_and_a_checkpoint_to_begin_from_are_given_by_name(project):
    (project / "first.ckpt").touch()
    run = serried.submit(
        ["python", "train.py", "{config.model.width}", "{config.é}", "{resume}"],
        cluster="local", config={"model.width": 64, "é": "a b"}, resume=project / "first.ckpt",
    )  # fmt: skip
    assert run.wait(900) == "COMPLETED"
    assert run.logs() == f"rank 0 64 a b {project}/first.ckpt\n"
    assert run.to_json()["resumed_from"] == f"{project}/first.ckpt"

    (run.directory / "checkpoints" / "own.ckpt").write_text("weights")
    with pytest.warns(SerriedWarning, match="has completed"):
        again = run.rerun(name="again")
    assert again.wait(900) == "COMPLETED"
    assert again.logs() == f"rank 0 64 a b {run.directory}/checkpoints/own.ckpt\n"
    assert (again.name, again.to_json()["rerun_of"]) == ("again", run.id)


@pytest.mark.runs
def test_a_failure_has_the_programs_own_status():
    run = serried.submit("python train.py fail", cluster="local")

    with pytest.raises(RunFailed, match=r"rank 0 on .* exited with status 3"):
        run.wait(900, check=True)

    assert (run.state, run.exit_code) == ("FAILED", 3)


@pytest.mark.runs
def test_a_run_can_be_stopped_and_waiting_has_an_end(wait_until):
    run = serried.submit("python train.py wait", cluster="local")
    wait_until(run.logs)
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    assert run.exit_code is None

    with pytest.raises(ValueError, match="mutually exclusive"):
        run.stop(save=True, now=True)
    run.stop(save=True)
    run.stop()

    assert run.wait(900) == "CANCELLED"
    run.stop()


@pytest.mark.runs
def test_what_a_run_does_now_is_its_progress_until_it_ends(wait_until):
    run = serried.submit("python train.py wait", cluster="local")
    progress = wait_until(lambda: run.progress)
    assert (progress["step"], progress["ranks"]) == (None, 1)
    run.stop()
    run.wait(900)
    assert run.progress is None


@pytest.mark.runs
def test_an_array_has_tasks():
    run = serried.submit("python train.py", cluster="local", array=range(2), settings={"resources.cpus": 1})

    assert run.wait(900) is serried.State.COMPLETED
    assert (run.done, run.state) == (True, "COMPLETED")
    assert [task.id for task in run.tasks] == [f"{run.id}/0", f"{run.id}/1"]
    assert [row["id"] for row in run.tasks.to_json()] == [f"{run.id}/0", f"{run.id}/1"]
    assert re.findall(r"<tr>(?:<td>[^<>]*</td>){6}</tr>", run.tasks._repr_html_()) == [ANY] * 3
    assert f"<td>{run.id}</td><td>train</td><td>COMPLETED</td>" in serried.runs()._repr_html_()
    assert run.tasks[1].logs() == "rank 0\n"
    assert serried.find(f"{run.id}/1") == run.tasks[1]
    with pytest.raises(UsageError, match="is an array"):
        run.logs()


def writes(run):
    """The paths and sizes of a run's outputs."""
    return [(str(each.path), each.bytes) for each in run.outputs()]


HOSTILE = "-rf a\nb $(id) 'ü"


@pytest.mark.runs
def test_what_a_run_wrote_by_relative_paths_are_its_outputs_and_what_was_fetched_says_so(project):
    (project / "save.py").write_text(
        f"import os\nos.makedirs('results')\nopen('results/model.pt', 'w').write('weights')\n"
        f"os.utime('results/model.pt', (2e9, 2e9))\nopen({HOSTILE!r}, 'w').close()\nos.symlink('gone', 'best')\n"
        "os.utime('best', (1.9e9, 1.9e9), follow_symlinks=False)\n"
    )
    run = serried.submit(["python", "save.py"], cluster="local")
    assert run.wait(900) == "COMPLETED"

    assert writes(run) == [("results/model.pt", 7), ("best", 0), (HOSTILE, 0)]
    model = serried.Output(
        Path("results/model.pt"), run.directory / "source/results/model.pt", 7, 2e9, is_fetched=False
    )
    assert run.outputs()[0] == model
    assert model.file.read_text() == "weights"

    assert here("fetch", run.id, "results/*", "--to", str(project.parent / "fetched")).returncode == 0
    assert [(str(each.path), each.is_fetched) for each in run.outputs()] == [
        ("results/model.pt", True), ("best", False), (HOSTILE, False),
    ]  # fmt: skip


@pytest.mark.runs
def test_the_outputs_of_an_array_are_those_of_its_tasks_below_their_numbers(project):
    (project / "save.py").write_text("import sys\nopen('model.pt', 'w').write(sys.argv[1])\n")
    run = serried.submit(["python", "save.py", "{task}"], array=[2, 10], cluster="local")
    assert run.wait(900) == "COMPLETED"

    assert sorted(writes(run)) == [("10/model.pt", 2), ("2/model.pt", 1)]
    assert [writes(task) for task in run.tasks] == [[("model.pt", 1)], [("model.pt", 2)]]


@pytest.mark.runs
def test_a_run_in_the_project_itself_has_no_outputs_of_its_own(project):
    (project / "save.py").write_text("open('model.pt', 'w').close()\n")
    run = serried.submit(["python", "save.py"], settings={"project.snapshot": False}, cluster="local")
    assert (run.wait(900), run.outputs(), (project / "model.pt").exists()) == ("COMPLETED", [], True)


@pytest.mark.runs
def test_a_folder_of_outputs_that_cannot_be_read_is_a_warning(project, monkeypatch):
    (project / "save.py").write_text("open('model.pt', 'w').close()\n")
    run = serried.submit(["python", "save.py"], cluster="local")
    assert run.wait(900) == "COMPLETED"

    def fails(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", fails)
        with pytest.warns(SerriedWarning, match=f"outputs of run {run.id} may be missing here: .*Input/output error"):
            assert run.outputs() == []
    assert writes(run) == [("model.pt", 0)]


@pytest.mark.runs
def test_repeats_are_tasks():
    run = serried.submit("echo {repeat}", cluster="local", repeat=2, settings={"resources.cpus": 1})

    assert run.wait(900) == "COMPLETED"
    assert [task.logs() for task in run.tasks] == ["0\n", "1\n"]


def test_an_error_that_nobody_catches_shows_what_another_program_said_and_its_hint():
    error = UsageError("no", details="sbatch: no", hint="ask")
    error.hint = "try again"
    lines = ["serried.base.errors.UsageError: no\n", "sbatch: no\n", "hint: try again\n"]
    assert traceback.format_exception_only(error) == lines


def test_what_cannot_be_is_an_error():
    with pytest.raises(RunNotFoundError):
        serried.find("nosuch")
    with pytest.raises(UsageError, match="never closed"):
        serried.submit("python 'train.py", cluster="local")
    with pytest.raises(UsageError):
        serried.submit("python train.py", nodes=0, cluster="local")
    assert serried.runs() == []


@pytest.mark.runs
def test_a_run_comes_after_others():
    first = serried.submit([sys.executable, "train.py"], ranks=1, cluster="local")
    second = serried.submit([sys.executable, "train.py", "late"], ranks=1, cluster="local", after=first)
    third = serried.submit([sys.executable, "train.py"], ranks=1, cluster="local", after=[f"{first.id}:any", second])

    assert [run.wait(timeout=900) for run in (third, second, first)] == ["COMPLETED"] * 3
    assert third.to_json()["after"] == [f"{first.id}:any", second.id]
    with pytest.raises(UsageError, match=f"run `{first.id}` .* has ended COMPLETED"):
        serried.submit([sys.executable, "train.py"], ranks=1, cluster="local", after=f"{first.id}:notok")


@pytest.mark.runs
def test_a_job_script_runs_with_its_arguments_and_the_logs_of_its_launches(project):
    text = '#!/bin/bash\n#SBATCH --ntasks=2\necho $PWD $1\nsrun python train.py "$2"\n'
    (project / "train.sbatch").write_text(text)

    run = serried.submit(
        script="train.sbatch", arguments=["first", "a b"], cluster="local", name="scripted", directory=project
    )

    assert run.wait(900) == "COMPLETED"
    assert run.name == "scripted"
    assert run.logs().splitlines()[0] == f"{project} first"
    assert run.logs(rank=1) == run.logs(rank=1, launch=1)
    assert run.logs(rank=1).endswith(" a b\n")
    with pytest.raises(UsageError, match="has no launch 2"):
        run.logs(launch=2)


def test_a_script_is_not_combined_with_a_command_or_an_experiment():
    with pytest.raises(ValueError, match="`script` cannot be combined"):
        serried.submit("python train.py", script="train.sbatch")
    with pytest.raises(ValueError, match="`script` cannot be combined"):
        serried.submit(experiment="train", script="train.sbatch")
    with pytest.raises(ValueError, match="`arguments` are those of a `script`"):
        serried.submit("python train.py", arguments=["--lr"])
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        serried.submit(script="train.sbatch", cluster="local")
    assert serried.runs() == []
