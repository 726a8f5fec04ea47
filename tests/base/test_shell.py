"""Commands are started in one way, and told apart by how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serried.base import shell
from serried.base.errors import MissingProgramError, install_hint
from tables import for_each


def python(code, **options):
    return shell.run([sys.executable, "-c", code], **options)


def test_a_result_has_the_status_and_both_streams():
    result = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.status, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_a_signals_number_is_negative():
    assert python("import os; os.kill(os.getpid(), 9)").status == -signal.SIGKILL


def test_bytes_that_are_no_text_survive_as_they_came():
    result = python("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())", input="\udcff\r\n€")
    assert result.stdout == "\udcff\r\n€"


def test_arguments_arrive_byte_for_byte():
    hostile = ["a b", "$(id)", '"', "'", "\n", "%j", "-rf", "\udcff", "é", "", "x" * 300]
    result = shell.run([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *hostile])
    assert result.stdout == ascii(hostile) + "\n"


def test_our_own_environment_gets_a_language_that_can_be_parsed(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert python("import os; print(os.environ['LC_ALL'])").stdout == "C\n"


def test_a_given_environment_is_passed_on_exactly():
    assert shell.run(["/usr/bin/env"], env={"A": "1"}).stdout == "A=1\n"


def test_a_missing_program_is_named_with_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError) as caught:
        shell.run(["sbatch", "job.sh"])
    assert caught.value.message == "`sbatch` is not installed, or not on PATH"
    assert caught.value.hint.startswith("apt-get install slurm-wlm (on Debian or Ubuntu, as root)")


def test_a_missing_program_of_the_users_is_in_no_package_that_we_know(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError) as caught:
        shell.run(["nosuchcmd"])
    assert caught.value.hint == "check its spelling, or use its full path"


def test_a_missing_working_directory_is_no_missing_program(tmp_path):
    with pytest.raises(FileNotFoundError):
        shell.run(["true"], cwd=tmp_path / "none")


@pytest.fixture
def late(tmp_path, monkeypatch, wait_until):
    """`run` looks at the clock only once its command has made the file `said`."""
    communicate = subprocess.Popen.communicate

    def after_that(process, *words):
        wait_until((tmp_path / "said").exists)
        return communicate(process, *words)

    monkeypatch.setattr(subprocess.Popen, "communicate", after_that)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("seconds", [0.5, 1e-9])
def test_what_takes_too_long_is_killed_and_its_words_are_kept(tmp_path, seconds):
    with pytest.raises(shell.TimedOut) as caught:
        shell.run(["sh", "-c", "echo 123; touch said; exec sleep 600"], timeout=seconds, cwd=tmp_path)
    assert (caught.value.stdout, caught.value.message) == ("123\n", f"`sh` did not answer within {seconds:.3g} s")


@pytest.mark.usefixtures("late")
def test_a_grandchild_that_holds_the_pipes_does_not_hold_us(tmp_path):
    code = "sleep 600 & echo $! >pid; echo 123; touch said; exec sleep 600"
    with pytest.raises(shell.TimedOut) as caught:
        shell.run(["sh", "-c", code], timeout=0.5, cwd=tmp_path)
    assert caught.value.stdout == "123\n"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_spawned_process_has_a_session_of_its_own_and_writes_to_its_log(tmp_path, wait_until):
    log = tmp_path / "log"
    code = "import os; print(os.getsid(0) == os.getpid(), os.read(0, 1))"
    shell.spawn([sys.executable, "-c", code], log=log)
    wait_until(lambda: log.read_text() == "True b''\n")


def test_a_spawned_process_that_has_ended_does_not_stay_a_zombie(tmp_path, wait_until):
    pid = shell.spawn(["true"], log=tmp_path / "log")

    def is_gone():
        shell.reap()
        return sys.platform != "linux" or not Path(f"/proc/{pid}").exists()

    wait_until(is_gone)


def test_verbose_shows_commands_as_one_would_type_them(monkeypatch, capfd):
    monkeypatch.setenv("SERRIED_VERBOSE", "1")
    shell.run(["true", "a b"])
    assert capfd.readouterr().err == "+ true 'a b'\n"


@for_each(("code", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_foreground_command_gives_its_status_as_a_shell_would(code, status):
    assert shell.foreground(["sh", "-c", code], env=os.environ) == status


def test_ctrl_c_just_as_a_foreground_command_ends_costs_its_status_nothing():
    told = []
    code = "kill -INT $PPID; exit 5"
    ends = [
        shell.foreground(["sh", "-c", code], env=os.environ, on_interrupt=lambda: told.append(1)) for _ in range(50)
    ]
    assert (ends, len(told)) == ([5] * 50, 50)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_missing_libraries_are_installed_beside_serried_by_their_own_names():
    assert install_hint("watch") == f"{sys.executable} -m pip install 'textual<9,>=8'"
    assert install_hint("ui") == f"{sys.executable} -m pip install 'starlette<2,>=0.40' 'uvicorn<1,>=0.30'"
