import os
import pwd
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from building import a_plan
from serried import schedulers
from serried.base.errors import ConfigError, UsageError
from serried.config.shell_words import parse_env, read_env_file
from serried.schema import names
from serried.schema.plan import Environment, Source
from serried.submission import environments
from serried.submission.environments import job_environment, package_prefixes
from tables import for_each

SHELL = {
    "HOME": "/home/ada",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "PATH": "/usr/bin:/bin",
    "VIRTUAL_ENV": "/home/ada/venv",
    "CUDA_HOME": "/opt/cuda",
    "WANDB_MODE": "offline",
    "WANDB_API_KEY": "canary",
    "SERRIED_MARK": "abcdef/-/1",
    "SLURM_JOB_ID": "17",
    "SLURM_CONF": "/etc/slurm.conf",
    "SBATCH_PARTITION": "debug",
}
LOGIN = {name: SHELL[name] for name in ("HOME", "LANG", "LC_ALL", "VIRTUAL_ENV", "SLURM_CONF")}
PATH = {"PATH": "/home/ada/venv/bin:/usr/bin:/bin"}


def test_all_is_everything_but_another_jobs_and_the_schedulers():
    got = job_environment(Environment(), SHELL)
    assert got == LOGIN | PATH | {"CUDA_HOME": "/opt/cuda", "WANDB_MODE": "offline", "WANDB_API_KEY": "canary"}


def test_none_is_what_a_login_gives_and_the_active_environment():
    got = job_environment(Environment(inherit="none"), SHELL)
    path = got.pop("PATH").split(":")
    assert got == environments.account() | LOGIN
    assert path[:4] == ["/home/ada/venv/bin", "/usr/local/bin", "/usr/bin", "/bin"]


def test_a_job_script_gets_the_path_of_the_shell_and_no_environment_that_is_not_active():
    got = job_environment(Environment(), SHELL, is_for_script=True)
    assert got["PATH"] == SHELL["PATH"]
    inactive = {name: value for name, value in SHELL.items() if name != "VIRTUAL_ENV"}
    assert "VIRTUAL_ENV" not in job_environment(Environment(), inactive, is_for_script=True)


@for_each(
    ("job", "inherited"),
    [
        ({"PBS_JOBID": "1.head", "NCPUS": "8", "OMP_NUM_THREADS": "8"}, {}),  # by PBS: the CPUs of its chunk
        ({"PBS_JOBID": "1.head", "NCPUS": "8", "OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}),
        (names.put({}, {"OMP_NUM_THREADS": "4"}), {}),  # by the agent of a rank or a shell
        ({**names.put({}, {"OMP_NUM_THREADS": "4"}), "OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}),
        ({"NCPUS": "8", "OMP_NUM_THREADS": "8"}, {"NCPUS": "8", "OMP_NUM_THREADS": "8"}),  # no job
    ],
)
def test_threads_that_the_job_around_us_was_given_are_nobodys_wish_for_the_next(job, inherited):
    got = job_environment(Environment(), {**SHELL, **job})
    assert {name: got[name] for name in ("NCPUS", "OMP_NUM_THREADS") if name in got} == inherited


def test_what_a_run_has_added_goes_and_what_its_program_has_set_since_stays():
    user = {"PATH": "/bin", "BASH_ENV": "/home/ada/bash_env", "PYTHONPATH": "/home/ada/lib:", "A": "1"}
    rank = names.put(user, {"RANK": "0", "PYTHONPATH": "/run/library.zip:/home/ada/lib:", "TF_CONFIG": "x" * 9000})
    rank = names.put(rank, {names.RUN_ID: "k3f9q2", "BASH_ENV": "/run/bash_env", "PATH": "/run/bin:/bin", "RANK": "1"})
    assert names.without_run(rank) == user
    changed = {**rank, "PATH": f"/module:{rank['PATH']}", "RANK": "7", "MINE": "2", "BASH_ENV": ""}
    assert names.without_run(changed) == {**user, "PATH": "/module:/bin", "RANK": "7", "MINE": "2", "BASH_ENV": ""}
    assert names.without_run({"A": "1", names.ADDED: "[torn"}) == {"A": "1"}
    from_nothing = names.put({}, {"PATH": "/run/bin", "PYTHONPATH": "/run/library.zip"})
    assert names.without_run(from_nothing) == {}


def test_names_are_taken_besides_a_login_and_may_be_patterns():
    got = job_environment(Environment(inherit=("PATH", "WANDB_M*", "SLURM_JOB_ID", "NOT_SET")), SHELL)
    assert got == environments.account() | LOGIN | PATH | {"WANDB_MODE": "offline"}


def test_what_a_login_gives_is_given_even_if_the_submitting_service_has_not_got_it(monkeypatch):
    ada = pwd.struct_passwd(("ada", "x", 7, 7, "", "/home/ada", "/bin/zsh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: ada)
    login = {"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/zsh"}
    for wanted in ("none", ("CUDA_HOME",)):
        got = job_environment(
            Environment(inherit=wanted), {"PATH": "/usr/bin", "HOME": "/scratch/ada"}, is_for_script=True
        )
        assert {name: got.get(name) for name in login} == {**login, "HOME": "/scratch/ada"}
    assert "SHELL" not in job_environment(Environment(), {"PATH": "/usr/bin"})


def test_later_sources_win(tmp_path):
    file = tmp_path / ".env"
    file.write_text("A=file\nB=file\nWANDB_MODE=online\nC=not named\n")
    named = ("A", "B", "WANDB_MODE")
    wanted = Environment(env={"A": "env"}, env_file=named, env_file_path=str(file), inherit="all")
    got = job_environment(wanted, SHELL)
    assert (got["A"], got["B"], got["WANDB_MODE"], "C" in got) == ("env", "file", "online", False)


def test_a_secret_comes_from_the_shell_whatever_is_inherited_and_must_be_set():
    got = job_environment(Environment(secrets=("WANDB_API_KEY",), inherit="none"), SHELL)
    assert got["WANDB_API_KEY"] == "canary"
    with pytest.raises(UsageError, match="the secret `HF_TOKEN` is not set"):
        job_environment(Environment(secrets=("HF_TOKEN",)), SHELL)


def test_serrieds_own_environment_is_used_when_none_is_active(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    got = job_environment(Environment(), {"PATH": "/usr/bin"})
    assert got == {"PATH": f"{tmp_path}/bin:/usr/bin", "VIRTUAL_ENV": str(tmp_path)}

    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert job_environment(Environment(), {"PATH": "/usr/bin"}) == {"PATH": "/usr/bin"}


def test_a_conda_environment_is_no_virtual_one_and_a_path_that_the_user_sets_stays():
    got = job_environment(Environment(), {"PATH": "/usr/bin", "CONDA_PREFIX": "/conda/envs/a"})
    assert got == {"PATH": "/conda/envs/a/bin:/usr/bin", "CONDA_PREFIX": "/conda/envs/a"}
    assert job_environment(Environment(env={"PATH": "/mine"}), SHELL)["PATH"] == "/mine"


def test_packages_are_looked_for_in_the_commands_own_environment(tmp_path):
    for name in ("active", "own"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").write_text("")
        (tmp_path / name / "bin/python").symlink_to(sys.executable)
    plan = a_plan()._replace(command=("own/bin/python", "train.py"), source=Source(str(tmp_path), "."))
    assert package_prefixes(plan, {"PATH": f"{tmp_path}/active/bin"}) == [tmp_path / "own", tmp_path / "active"]


def test_an_env_file_is_read_as_a_shell_would_read_it():
    text = (
        '\ufeff# comment\r\n\r\nA=1\nexport B = two words  # comment\nC=\'$x \\n\'\nD="a\\tb \\"q\\" \\$x"\n'
        "E=\nF=#none\nG=a#b\nH='two\nlines' # c\n"
    )
    expected = ["1", "two words", "$x \\n", 'a\tb "q" $x', "", "", "a#b", "two\nlines"]
    assert parse_env(text, ".env") == dict(zip("ABCDEFGH", expected, strict=True))


@for_each("text", ["A", "=1", "1A=2", "A=1\nB='x", 'B="x\ny', "A='x' y", "A B=1"])
def test_what_is_no_env_file_is_an_error_with_its_line(text):
    with pytest.raises(ConfigError, match=r"^\.env:[12]: "):
        parse_env(text, ".env")


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    try:
        values = parse_env(text, ".env")
    except ConfigError:
        return
    assert all(name.isidentifier() for name in values)


def test_an_env_file_that_is_missing_or_binary_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the env_file"):
        read_env_file(tmp_path / ".env")
    (tmp_path / ".env").write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_env_file(tmp_path / ".env")


def test_no_variable_of_another_job_is_a_name_that_login_gives():
    assert not any(name.startswith(schedulers.prefixes()) for name in (*environments.LOGIN, *environments.ACTIVE))
    assert Path(os.sep) in Path(environments.SYSTEM_PATH[0]).parents


GOOD = ("https://hooks.example.org/services/T0/B0?thread=1", "http://[::1]:8065/hooks/x", "https://hooks.example.org")
BAD = ("", "ftp://example.org/x", "hooks.example.org/x", "https://", "https://ada:canary@example.org/x")


def test_an_address_that_nothing_can_be_posted_to_is_refused_and_not_shown(ask, monkeypatch):
    overrides = {"notify.webhook": "HOOK", "environment.inherit": "none"}  # as a secret, the job has it all the same
    for value in GOOD:
        monkeypatch.setenv("HOOK", value)
        assert ask(overrides=overrides).environment["HOOK"] == value
    for value in (*BAD, "https://example.org/a canary", "https://example.org/canary\n"):
        monkeypatch.setenv("HOOK", value)
        with pytest.raises(UsageError) as caught:
            ask(overrides=overrides)
        assert caught.value.message == "`HOOK`, which `notify.webhook` names, is not a web address"
        assert "canary" not in str(caught.value.hint)
