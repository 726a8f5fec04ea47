"""Environments that Serried builds: from which file, and when again."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from serried.base.errors import EnvironmentFailed, MissingProgramError, UsageError
from serried.schema.plan import Build, Environment
from serried.submission import builds, environments
from serried.submission.builds import Recipe, environment_recipe, inputs, install_commands, source_of
from serried.submission.deliver import silent

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


def made(project: Path, environ: dict[str, str] | None = None, **build: str) -> Recipe:
    build = {"kind": "venv", "python": sys.executable, **build}
    found = environment_recipe(Environment(build=Build(**build)), project, environ or variables())
    assert found
    return found


def test_it_is_built_once_and_anew_elsewhere_when_its_inputs_change(project, tmp_path):
    wheel(tmp_path / "wheels", "tiny_thing", "1.0")
    environ = variables(tmp_path / "wheels")
    said: list[str] = []

    def finish_at_once(script: Path, _log: Path, _tick: builds.Tick) -> str:
        (script.with_suffix("") / "bin").mkdir(parents=True)
        (script.with_suffix("") / "bin" / "python").symlink_to(sys.executable)
        return ""

    def never(*_: object) -> str:
        pytest.fail("a complete environment was built again")

    def observe(text: str, *_: str) -> None:
        said.append(text)

    first = builds.provide(made(project, environ), builds.here(environ), observe)
    assert builds.provide(made(project, environ), never, observe) == first
    (project / "requirements.txt").write_text("tiny-thing\n")
    second = builds.provide(made(project, environ), finish_at_once, observe)

    program = "import sys, tiny_thing; print(sys.prefix, tiny_thing.VERSION)"
    argv = [first / "bin" / "python", "-c", program]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"{first} 1.0\n"
    assert second not in (first, None)
    assert said[0].startswith("building venv-")
    assert (project / ".serried" / ".gitignore").read_text() == "*\n"


def test_a_build_that_fails_says_why_and_leaves_nothing_half_built(project):
    commands = 'mkdir "$prefix"; echo -e "\\e[91mno such\\e[0m thing"; exit 3\n'
    message = r"building venv-.* from requirements.txt failed: exit status 3"
    with pytest.raises(EnvironmentFailed, match=message) as failure:
        builds.provide(dataclasses.replace(made(project), commands=commands), builds.here(variables()), silent)

    assert failure.value.details == "no such thing"
    assert [path.suffix for path in sorted((project / builds.ENVIRONMENTS).iterdir())] == [".log", ".sh"]


def test_a_name_changes_with_whatever_goes_into_the_environment(project):
    names = [made(project).name, made(project, torch="cpu").name]
    for name, text in (
        ("requirements.txt", "tiny-thing==1.1\n"),
        ("requirements.txt", "-c limits.txt\n"),
        ("limits.txt", "a<2\n"),
        ("requirements.txt", "-e .[train]\n"),
        ("pyproject.toml", "[project]\nname = 'p'\n"),
    ):
        (project / name).write_text(text)
        names.append(made(project).name)

    assert len(set(names)) == len(names)
    assert made(project).name == names[-1]


def test_a_conda_environments_name_changes_with_the_lists_for_pip_that_it_names(project):
    conda = project / "environment.yml"
    conda.write_text("dependencies:\n  - pip\n  - pip:\n    - '-r requirements.txt'\n    - -e ./ours\n")
    (project / "ours").mkdir()
    (project / "ours" / "pyproject.toml").write_text("")

    assert sorted(path.relative_to(project) for path in inputs(conda)) == [
        Path(name) for name in ("environment.yml", "ours/pyproject.toml", "requirements.txt")
    ]


def test_of_several_files_the_one_that_says_most_is_taken(project):
    build = Build("venv")
    (project / "pyproject.toml").write_text("")
    for name in ("requirements.txt", "Pipfile", "uv.lock"):
        (project / name).write_text("")
        assert source_of(build, project).name == name
    assert source_of(Build("venv", str(project / "requirements.txt")), project).name == "requirements.txt"


def test_what_cannot_be_built_from_is_refused(project, monkeypatch):
    (project / "pyproject.toml").write_text("[tool.ruff]\n")
    (project / "bad.toml").write_text("[")
    (project / "empty").mkdir()
    for build, folder, words in (
        (Build("venv"), project / "empty", "cannot build an environment: `.*` has no `uv.lock`, `Pipfile`, "),
        (Build("conda"), project, "has no `environment.yml`, `environment.yaml`"),
        (Build("venv", str(project / "other.txt")), project, "`.*/other.txt` does not exist"),
        (Build("venv", str(project / "pyproject.toml")), project, "cannot build an environment from `.*t.toml`"),
        (Build("venv", str(project / "bad.toml")), project, "cannot build an environment from `.*bad.toml`"),
    ):
        with pytest.raises(UsageError, match=words):
            install_commands(build, source_of(build, folder))
    with pytest.raises(UsageError, match=r"`environment.torch` works only with pip"):
        install_commands(Build("conda", torch="cpu"), project / "environment.yml")
    (project / "uv.lock").write_text("")
    locked = 'UV_PROJECT_ENVIRONMENT=$prefix uv sync --frozen --python "$prefix/bin/python"\n'
    assert install_commands(Build("venv"), project / "uv.lock") == locked
    with pytest.raises(UsageError, match=r"`environment.torch` cannot change the packages in `uv.lock`"):
        install_commands(Build("venv", torch="cpu"), project / "uv.lock")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingProgramError, match="needs `uv`, which is not on PATH"):
        made(project)


def test_modules_that_cannot_be_loaded_are_not_called_a_python_that_cannot_build(project):
    environment = Environment(build=Build("venv"), modules=("no-such-python/3.11",))
    with pytest.raises(EnvironmentFailed, match=r"the modules no-such-python/3\.11 cannot be used here") as failure:
        environment_recipe(environment, project, variables())
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
    pipfile = project / "Pipfile"
    assert install_commands(Build("venv", torch="cu126"), pipfile).splitlines()[1:] == [
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
    assert install_commands(Build("venv"), pipfile).splitlines()[1:] == ["torch==2.6.0", "REQUIREMENTS"]
    (project / "Pipfile.lock").write_text("{}")
    with pytest.raises(UsageError, match=r"cannot understand `.*Pipfile.lock`"):
        install_commands(Build("venv"), pipfile)


@pytest.mark.parametrize("kind", ["venv", "conda"])
def test_the_script_that_builds_can_be_read(kind, monkeypatch):
    source = Path("/home/ada/it's mine", {"venv": "requirements.txt", "conda": "environment.yml"}[kind])
    monkeypatch.setattr(builds, "source_of", lambda *_: source)
    monkeypatch.setattr(builds, "_bytes", lambda _: b"")
    monkeypatch.setattr(builds, "_python", lambda *_: ("python3.11", ""))
    monkeypatch.setattr(environments, "conda_program", lambda _: "/opt/conda/bin/conda")
    torch, modules = {"venv": ("cu126", ()), "conda": ("", ("gcc/11",))}[kind]
    built = environment_recipe(Environment(build=Build(kind, torch=torch), modules=modules), source.parent, {})
    text = built.script(source.parent / ".serried/environments" / f"{kind}-0123456789ab-c5d3").replace(built.name, kind)

    assert text == (GOLDEN / f"build-{kind}.sh").read_text()
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is missing: apt-get install shellcheck")
    result = subprocess.run([checker, GOLDEN / f"build-{kind}.sh"], capture_output=True, text=True, check=False)
    assert result.stdout == ""
