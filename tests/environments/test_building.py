"""Environments that Serried builds: from what, when again, and by whom."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from serried import processes
from serried.environments import building, recipe, sources, store
from serried.environments.store import Store
from serried.errors import EnvironmentFailed, MissingProgramError, UsageError
from serried.plan import Build, Environment

pytestmark = pytest.mark.runs

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("tiny-thing==1.0\n")
    return folder


def wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def variables(wheels: Path | None = None) -> dict[str, str]:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)} if wheels else {}
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, **offline}


def made(project: Path, environ: dict[str, str] | None = None, **build: str) -> recipe.Recipe:
    build = {"kind": "venv", "python": sys.executable, **build}
    found = recipe.recipe(Environment(build=Build(**build)), project, environ or variables())
    assert found
    return found


def finished_at_once(script: Path, log: Path, tick: building.Tick) -> None:  # noqa: ARG001
    """Builds nothing but what a whole environment is known by."""
    tick()
    prefix = script.with_suffix("")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)


def never(script: Path, log: Path, tick: building.Tick) -> None:  # noqa: ARG001
    pytest.fail("it is there and was built again")


def test_it_is_built_once_and_anew_elsewhere_when_its_inputs_change(project, tmp_path):
    wheel(tmp_path / "wheels", "tiny_thing", "1.0")
    environ = variables(tmp_path / "wheels")
    said: list[str] = []

    first = building.provide(
        made(project, environ), project, building.here(environ), lambda text, *_: said.append(text)
    )
    assert building.provide(made(project, environ), project, never, lambda text, *_: said.append(text)) == first
    (project / "requirements.txt").write_text("tiny-thing\n")
    second = building.provide(made(project, environ), project, finished_at_once, lambda text, *_: said.append(text))

    program = "import sys, tiny_thing; print(sys.prefix, tiny_thing.VERSION)"
    argv = [first / "bin" / "python", "-c", program]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"{first} 1.0\n"
    assert second not in (first, None)
    assert said[0].startswith("building venv-")
    assert (project / ".serried" / ".gitignore").read_text() == "*\n"


def test_a_build_that_fails_says_why_and_leaves_nothing_half_built(project):
    wanted = dataclasses.replace(
        made(project), python="true", commands='mkdir "$prefix"; echo -e "\\e[91mno such\\e[0m thing"; exit 3\n'
    )

    with pytest.raises(EnvironmentFailed, match=r"`venv-.*` was not built: .* status 3") as failure:
        building.provide(wanted, project, building.here(variables()), lambda *_: None)

    assert failure.value.details == "no such thing"
    assert [path.suffix for path in sorted((project / store.FOLDER).iterdir())] == [".log", ".sh"]


def test_a_name_changes_with_whatever_goes_into_the_environment(project):
    before = made(project)
    changes = {
        "torch": lambda: made(project, torch="cpu"),
        "file": lambda: (project / "requirements.txt").write_text("tiny-thing==1.1\n"),
        "included": lambda: (project / "requirements.txt").write_text("-c limits.txt\n"),
        "content": lambda: (project / "limits.txt").write_text("a<2\n"),
        "project": lambda: (project / "requirements.txt").write_text("-e .[train]\n"),
        "description": lambda: (project / "pyproject.toml").write_text("[project]\nname = 'p'\n"),
    }
    names = [before.name]
    for change in changes.values():
        result = change()
        names.append(result.name if isinstance(result, recipe.Recipe) else made(project).name)

    assert len(set(names)) == len(names)
    assert made(project).name == names[-1]


def test_a_conda_environments_name_changes_with_the_lists_for_pip_that_it_names(project):
    conda = project / "environment.yml"
    conda.write_text("dependencies:\n  - pip\n  - pip:\n    - '-r requirements.txt'\n    - -e ./ours\n")
    (project / "ours").mkdir()
    (project / "ours" / "pyproject.toml").write_text("")

    found = sources.find(Build("conda"), project)

    assert [Path(name).relative_to(project) for name, _ in found.contents] == [
        Path(name) for name in ("environment.yml", "ours/pyproject.toml", "requirements.txt")
    ]


def test_of_several_files_the_one_that_says_most_is_taken(project):
    build = Build("venv")
    (project / "pyproject.toml").write_text("")
    for name in ("requirements.txt", "Pipfile", "uv.lock"):
        (project / name).write_text("")
        assert sources.find(build, project).path.name == name
    assert sources.find(Build("venv", str(project / "requirements.txt")), project).path.name == "requirements.txt"


def test_what_cannot_be_built_from_is_refused(project, monkeypatch):
    (project / "pyproject.toml").write_text("[tool.ruff]\n")
    (project / "bad.toml").write_text("[")
    empty = project / "empty"
    empty.mkdir()
    for build, folder, words in (
        (Build("venv"), empty, "there is nothing to build an environment from in"),
        (Build("conda"), project, "no `environment.yml`, `environment.yaml`"),
        (Build("venv", str(project / "other.txt")), project, "there is no `.*/other.txt`"),
        (
            Build("venv", str(project / "pyproject.toml")),
            project,
            "no environment can be built from `.*t.toml`",
        ),
        (Build("venv", str(project / "bad.toml")), project, "no environment can be built from|is no TOML"),
    ):
        with pytest.raises(UsageError, match=words):
            sources.find(build, folder)
    with pytest.raises(UsageError, match=r"`environment.torch` is for what pip installs"):
        sources.find(Build("conda", str(project / "requirements.txt"), torch="cpu"), project)
    (project / "uv.lock").write_text("")
    locked = 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    assert sources.find(Build("venv"), project).install == locked
    with pytest.raises(UsageError, match=r"`environment.torch` cannot change what `uv.lock` says"):
        sources.find(Build("venv", torch="cpu"), project)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingProgramError, match="is for `uv`, which is not on PATH"):
        made(project)


def test_modules_that_cannot_be_loaded_are_not_called_a_python_that_cannot_build(project):
    environment = Environment(build=Build("venv"), modules=("no-such-python/3.11",))
    with pytest.raises(EnvironmentFailed, match=r"the modules no-such-python/3\.11 cannot be used here") as failure:
        recipe.recipe(environment, project, variables())
    assert "'module load no-such-python/3.11' failed" in (failure.value.details or "")


def test_a_pipfile_is_what_pip_reads(project):
    (project / "Pipfile").write_text(
        """
[[source]]
name = "pypi"
url = "https://index.example.org/simple"
[[source]]
url = "https://${TOKEN}@example.org/simple"
[packages]
torch = "==2.6"
numpy = "*"
wandb = {version = ">=0.17", extras = ["media", "sweeps"], markers = "python_version > '3.8'"}
helpers = {path = "./helpers", editable = true}
fork = {git = "https://example.org/fork.git", ref = "v1", subdirectory = "python"}
"""
    )
    source = sources.find(Build("venv", torch="cu126"), project)
    assert source.install.splitlines()[1:] == [
        "--extra-index-url https://${TOKEN}@example.org/simple",
        "torch==2.6",
        "numpy",
        "wandb[media,sweeps]>=0.17 ; (python_version > '3.8')",
        "--editable ./helpers",
        "fork @ git+https://example.org/fork.git@v1#subdirectory=python",
        "REQUIREMENTS",
    ]
    lock = {"_meta": {"sources": []}, "default": {"torch": {"version": "==2.6.0", "hashes": ["sha256:0"]}}}
    (project / "Pipfile.lock").write_text(json.dumps(lock))
    assert sources.find(Build("venv"), project).install.splitlines()[1:] == ["torch==2.6.0", "REQUIREMENTS"]
    (project / "Pipfile.lock").write_text("{}")
    with pytest.raises(UsageError, match=r"cannot understand `.*Pipfile.lock`"):
        sources.find(Build("venv"), project)


@pytest.mark.parametrize("kind", ["venv", "conda"])
def test_the_script_that_builds_can_be_read(kind):
    commands = {
        "venv": sources._install(Build("venv", torch="cu126"), Path("/home/ada/it's mine/requirements.txt")),
        "conda": sources._install(Build("conda"), Path("/home/ada/it's mine/environment.yml")),
    }
    text = recipe.Recipe(
        Build(kind),
        Path("/home/ada/it's mine/file"),
        f"{kind}-0123456789ab",
        {"venv": "python3.11", "conda": "/opt/conda/bin/conda"}[kind],
        commands[kind],
        Environment(modules=("gcc/11",) if kind == "conda" else ()),
    ).script(Path(f"/home/ada/it's mine/.serried/environments/{kind}-0123456789ab-c5d3"))

    assert text == (GOLDEN / f"{kind}.sh").read_text()
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is missing: apt-get install shellcheck")
    result = subprocess.run([checker, GOLDEN / f"{kind}.sh"], capture_output=True, text=True, check=False)
    assert result.stdout == ""


def test_who_comes_while_it_is_built_waits_and_takes_what_the_other_has_built(project):
    began, may_end, waits = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []
    found: list[Path] = []

    def slowly(script: Path, log: Path, tick: building.Tick) -> None:
        began.set()
        assert may_end.wait(120)
        finished_at_once(script, log, tick)

    def hears(text: str, *_: str) -> None:
        said.append(text)
        waits.set()

    wanted = made(project)
    first = threading.Thread(target=lambda: found.append(building.provide(wanted, project, slowly, lambda *_: None)))
    first.start()
    assert began.wait(120)
    second = threading.Thread(target=lambda: found.append(building.provide(wanted, project, never, hears)))
    second.start()
    assert waits.wait(120)
    may_end.set()
    for thread in (first, second):
        thread.join()

    assert found == [found[0]] * 2
    assert said[0] == f"waiting for {os.uname().nodename}, which is {wanted.doing}"
    assert not (project / store.FOLDER / f"{wanted.name}.claims").exists()


def leave_a_claim(project: Path, name: str, **owner: object) -> Path:
    """What a builder that was killed leaves behind."""
    kept = Store(project, name)
    claim = kept.claim()
    assert claim
    claim.prefix.mkdir()
    (claim.path / "owner.json").write_text(json.dumps({"host": os.uname().nodename, "pid": 1, "started": "?", **owner}))
    return claim.prefix


def test_a_builder_that_was_killed_is_replaced_and_its_half_built_folder_removed(project):
    wanted = made(project)
    half = leave_a_claim(project, wanted.name)

    found = building.provide(wanted, project, finished_at_once, lambda *_: None)

    assert found != half
    assert not half.exists()


def test_who_comes_while_the_claims_are_tidied_away_looks_again(project, monkeypatch):
    kept = Store(project, "venv-x")

    def numbers(_: Store) -> list[int]:
        kept._claims.rmdir()
        return []

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_numbers", numbers)
        assert kept.claim() is None
    assert kept.claim() is not None


@pytest.mark.parametrize("has_proc", [True, False])
def test_a_builder_that_is_at_work_is_not_replaced_also_where_there_is_no_proc(project, monkeypatch, has_proc):
    monkeypatch.setattr(processes, "HAS_PROC", has_proc)
    at_work = Store(project, "venv-x").claim()
    assert (at_work is not None, Store(project, "venv-x").claim()) == (True, None)


def test_a_builder_on_another_machine_is_replaced_once_it_falls_silent(project, monkeypatch):
    wanted = made(project)
    leave_a_claim(project, wanted.name, host="login9")
    said: list[str] = []
    monkeypatch.setattr(store, "SILENT_SECONDS", 0.8)

    building.provide(wanted, project, finished_at_once, lambda text, *_: said.append(text))

    assert said[0] == f"waiting for login9, which is {wanted.doing}"


def test_a_builder_that_was_replaced_publishes_nothing_and_leaves_its_successors_folder(project):
    kept = Store(project, "venv-x")
    old = kept.claim()
    assert old
    new = kept.succeed(kept.owner())
    assert new
    assert kept.succeed({"number": 1}) is None  # only one can
    for claim in (old, new):
        (claim.prefix / "bin").mkdir(parents=True)
        (claim.prefix / "bin" / "python").write_text("")

    kept.publish(old, {})
    kept.tidy(old)
    assert (kept.finished(), old.prefix.exists(), new.prefix.exists()) == (None, False, True)

    kept.publish(new, {})
    kept.tidy(new)
    assert kept.finished() == new.prefix


def test_a_build_ends_with_who_started_it(tmp_path, wait_until):
    log = tmp_path / "log"
    script = tmp_path / "script"
    script.write_text("sh -c 'echo $$; exec sleep 1000'; echo went on\n")
    program = (
        "import os, pathlib, signal, sys; from serried.environments import building\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "def tick(): log.exists() and log.read_text() and os.kill(os.getpid(), signal.SIGKILL)\n"
        "building.here(os.environ)(pathlib.Path(sys.argv[2]), log, tick)"
    )
    subprocess.run([sys.executable, "-c", program, log, script], check=False)

    wait_until(lambda: processes.identify(int(log.read_text().split()[0])) is None)
    assert "went on" not in log.read_text()


def test_interrupting_the_build_ends_it_and_leaves_no_claim(project, wait_until):
    def interrupted() -> None:
        raise KeyboardInterrupt

    log = project / "log"
    script = project / "script"
    script.write_text("sleep 1000 & echo $! ; wait\n")
    with pytest.raises(KeyboardInterrupt):
        building.here(variables())(script, log, lambda: interrupted() if log.exists() and log.read_text() else None)

    wait_until(lambda: processes.identify(int(log.read_text())) is None)
