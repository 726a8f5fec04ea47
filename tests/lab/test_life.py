"""Nothing of a lab is left when it is down, however its maker ended."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import serried
from serried import lab as labs
from serried.base import processes, shell
from serried.base.errors import MissingProgramError, SerriedError, UsageError
from tables import for_each

SOURCE = str(Path(serried.__file__).parents[1])


def start_python(code, *arguments):
    """Another process that makes labs."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def run_python(code):
    """The exit status of another process that makes labs."""
    return shell.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}).status


def of_root(root):
    """Every process that belongs to a lab below `root`."""
    prefix = f"{root}/"
    return list(
        processes.with_environment(
            lambda variables: any(variables.get(name, "").startswith(prefix) for name in ("SERRIED_LAB", "SLURM_CONF"))
        )
    )


@pytest.fixture
def lab_root(make_lab):
    """Where this test's labs lie, and only they; the test is skipped without Slurm."""
    make_lab(nodes=1, gpus=0).down()
    yield labs.root()
    labs.down_all()


def test_a_job_and_what_it_detached_are_gone_after_down(make_lab, wait_until):
    lab = make_lab(nodes=2)
    script = "(setsid nohup sleep 600 &) ; srun sleep 600"
    marked = {**lab.environment(), "SERRIED_TEST": str(lab.spec.directory)}
    shell.run(["sbatch", "-N2", "-o/dev/null", "--wrap", script], env=marked)

    def of_the_job():
        return list(processes.with_environment(lambda each: each.get("SERRIED_TEST") == marked["SERRIED_TEST"]))

    # The batch shell, srun and its twin, one sleep on each node, and the detached one.
    wait_until(lambda: len(of_the_job()) == 6)
    lab.down()
    assert (of_the_job(), lab.leftovers(), lab.spec.directory.exists()) == ([], [], False)


def test_a_shell_that_works_in_the_lab_outlives_it(make_lab):
    lab = make_lab(nodes=1)
    with subprocess.Popen(["sleep", "600"], env=lab.environment()) as bystander:
        lab.down()
        assert bystander.poll() is None
        bystander.kill()


def test_labs_beside_each_other_do_not_mix(make_lab):
    first, second = make_lab(nodes=2), make_lab(nodes=3)
    assert [len(each.status().nodes) for each in (first, second)] == [2, 3]
    first.down()
    assert second.status().is_up
    assert second.run("srun", "-N3", "true").status == 0


def test_labs_that_start_at_the_same_moment_all_come_up(lab_root):
    code = "import sys; from serried import lab; print(lab.up(sys.argv[1], nodes=2).status().is_up)"
    makers = [start_python(code, f"l{number}") for number in range(3)]
    assert [maker.communicate()[0] for maker in makers] == ["True\n"] * 3
    assert [each.name for each in labs.labs()] == ["l0", "l1", "l2"]
    assert labs.down_all() == ["l0", "l1", "l2"]
    assert (of_root(lab_root), lab_root.exists()) == ([], False)


@pytest.mark.parametrize("step", ["starting munged", "starting slurmctld", "starting 4 nodes"])
def test_down_all_removes_what_a_maker_that_was_killed_while_starting_has_left(lab_root, step):
    code = (
        "import os; from serried import lab\n"
        f"lab.up('k', progress=lambda text: os.kill(os.getpid(), 9) if text == {step!r} else None)"
    )
    assert run_python(code) == -9
    labs.down_all()
    assert (of_root(lab_root), lab_root.exists()) == ([], False)


def test_down_all_removes_a_lab_whose_maker_was_killed_afterwards(lab_root):
    with start_python(
        "import time; from serried import lab; lab.up('k'); print(1, flush=True); time.sleep(600)"
    ) as maker:
        maker.stdout.readline()
        maker.kill()
    assert labs.find("k").status().is_up
    assert labs.down_all() == ["k"]
    assert (of_root(lab_root), lab_root.exists()) == ([], False)


def test_a_temporary_lab_is_removed_once_its_maker_has_gone(lab_root):
    assert run_python("import os; from serried import lab; lab.up('t', temporary=True); os._exit(0)") == 0
    labs.sweep_abandoned()
    assert (labs.labs(), of_root(lab_root)) == ([], [])


def test_a_name_that_is_taken_is_refused_and_the_lab_that_has_it_goes_on(make_lab):
    lab = make_lab(nodes=1)
    with pytest.raises(UsageError) as caught:
        labs.up(lab.name, nodes=1)
    assert caught.value.message == f"lab `{lab.name}` is already up"
    assert lab.status().is_up


def test_a_lab_that_died_with_the_machine_gives_its_name_back(make_lab):
    dead = make_lab(nodes=1)
    for name in dead.status().daemons:
        dead.kill(name)
    dead.owner = None
    dead.save()
    again = labs.up(dead.name, nodes=2)
    assert again.status().is_up
    again.down()


def test_a_daemon_that_ends_at_once_is_an_error_with_its_last_words_and_leaves_nothing(lab_root):
    with pytest.raises(SerriedError) as caught:
        labs.up("broken", nodes=1, settings={"SelectType": "select/nonsense"})
    assert "select/nonsense" in caught.value.details
    assert (of_root(lab_root), lab_root.exists()) == ([], False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else; the other tests ran as you")
def test_an_ordinary_user_has_labs_too(lab_root):
    nobody = pwd.getpwnam("nobody")
    root = Path(f"{lab_root}-nobody")
    # Loads everything as root, because nobody may not be able to read this Python; then becomes nobody.
    code = (
        "import os; from serried import lab\n"
        f"os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid}); os.chdir('/')\n"
        "made = lab.up('n', nodes=2)\n"
        "print(made.run('srun', '-N2', '--gpus-per-node=2', 'sh', '-c', 'id -un; echo $CUDA_VISIBLE_DEVICES').stdout)\n"
        "print(bool(made.run('srun', 'getent', 'hosts', 'n2').stdout) == made.spec.own_hosts)\n"
        "made.run('sbatch', '-o/dev/null', '--wrap', 'sleep 600')\n"
        "made.down()\n"
        "print(made.leftovers(), os.path.exists(lab.root()))"
    )
    root.mkdir()
    os.chown(root, nobody.pw_uid, nobody.pw_gid)
    root.chmod(0o700)
    try:
        result = shell.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": SOURCE, "SERRIED_LAB_ROOT": f"{root}/labs", "HOME": "/"},
        )
        assert (sorted(result.stdout.split("\n")), result.stderr) == (
            sorted(["nobody", "0,1", "nobody", "0,1", "", "True", "[] False", ""]), "",
        )  # fmt: skip
        assert of_root(root) == []
    finally:
        root.rmdir()


def test_a_root_that_goes_while_one_looks_into_it_has_no_labs(lab_root, monkeypatch):
    """The last lab is taken down by somebody else just then."""
    lab_root.mkdir()
    look = Path.lstat

    def and_then_it_goes(path):
        found = look(path)
        if path == lab_root:
            lab_root.rmdir()
        return found

    monkeypatch.setattr(Path, "lstat", and_then_it_goes)
    assert labs.labs() == []
    lab_root.mkdir()
    assert (labs.down_all(), lab_root.exists()) == ([], False)


def test_a_lab_is_removed_also_where_a_thread_of_what_was_killed_writes_once_more(make_lab, monkeypatch):
    lab = make_lab(nodes=1, gpus=0)
    remove, late = shutil.rmtree, []

    def and_it_writes(path, **options):
        remove(path, **options)
        if not late:
            late.append(path)
            path.mkdir()
            (path / "ib_logfile0").touch()

    monkeypatch.setattr(shutil, "rmtree", and_it_writes)
    lab.down()
    assert (late, lab.spec.directory.exists()) == ([lab.spec.directory], False)


@for_each(
    ("name", "options", "message"),
    [
        ("A b", {}, "`A b` cannot be the name of a lab"),
        ("../x", {}, "`../x` cannot be the name of a lab"),
        ("lab", {"nodes": 0}, "a lab has 1 to 60 nodes, not 0"),
        ("lab", {"nodes": 61}, "a lab has 1 to 60 nodes, not 61"),
        ("lab", {"gpus": -1}, "a node of a lab has 0 to 64 GPUs, not -1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(name, options, message):
    with pytest.raises(UsageError) as caught:
        labs.up(name, **options)
    assert caught.value.message == message


def test_a_root_that_is_too_long_for_sockets_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SERRIED_LAB_ROOT", str(tmp_path / ("x" * 80)))
    with pytest.raises(UsageError, match="too long for the sockets of a lab"):
        labs.up()


def test_a_root_that_others_can_write_to_is_refused(lab_root, monkeypatch):
    del lab_root
    open_to_all = Path(tempfile.mkdtemp(prefix="serried-open-"))
    try:
        open_to_all.chmod(0o777)
        monkeypatch.setenv("SERRIED_LAB_ROOT", str(open_to_all))
        with pytest.raises(SerriedError, match="is not a directory that only you can write to"):
            labs.up()
        with pytest.raises(SerriedError, match="is not a directory that only you can write to"):
            labs.down_all()
    finally:
        open_to_all.rmdir()


def test_where_slurm_is_missing_the_install_command_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(shell, "SYSTEM_FOLDERS", ())
    with pytest.raises(MissingProgramError) as caught:
        labs.up(accounting=True)
    assert caught.value.hint.startswith("apt-get install mariadb-server munge slurm-wlm slurmdbd (on Debian")
