"""Which files a snapshot has, which entries it links, and what is warned of or refused."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.schema.names import FETCHED
from serried.submission import snapshot
from serried.submission.snapshot import survey

ENVIRONMENT = os.environ | {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder, *arguments):
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    subprocess.run(command, cwd=folder, check=True, env=ENVIRONMENT, capture_output=True)


def write(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(project):
    git(project, "init", "-q")
    write(project, "train.py", "src/model.py")
    (project / ".gitignore").write_text("data/\n*.sif\n__pycache__/\n/checkpoints\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    return project


def test_tracked_and_untracked_files_are_taken_and_ignored_ones_are_linked(repository):
    write(repository, "new.py", "data/big", "checkpoints/a", "image.sif", "__pycache__/a.pyc", "src/__pycache__/a")

    listed = survey(repository)

    assert listed.files == (".gitignore", "new.py", "src/model.py", "train.py")
    assert listed.untracked == ("new.py",)
    assert listed.links == ("checkpoints", "data", "image.sif")


def test_ignored_modules_beside_modules_of_the_snapshot_are_warned_of(repository):
    (repository / ".gitignore").write_text("_*.py\n*_pb2.py\n*.so\nmade/\nout/\n__pycache__/\n")
    write(
        repository, "_top.py", "src/_version.py", "src/a_pb2.py", "src/deep/fast.so", "src/deep/x.py", "src/made/a.py"
    )
    write(repository, "src/out/a.txt", "src/__pycache__/a.py", "data/_made.py", "nested/_own.py", "nested/code.py")
    git(repository / "nested", "init", "-q")
    (repository / "nested/.gitignore").write_text("_own.py\n")

    listed = survey(repository)
    assert listed.ignored_modules == (
        *("nested/_own.py", "src/_version.py", "src/a_pb2.py", "src/deep/fast.so", "src/made"),
    )
    assert listed.links == ("_top.py", "data")
    (warning,) = listed.warnings
    assert warning == (
        "git ignores these modules, so the snapshot lacks them: `nested/_own.py`, `src/_version.py`, "
        '`src/a_pb2.py` and 2 more; `link = ["nested/_own.py", "src/_version.py", "src/a_pb2.py", …]` '
        "under `[project]` links them"
    )
    chosen = survey(repository, ["src/_*.py", "src/*_pb2.py", "src/deep/*.so", "!src/made", "nested/_own.py"])
    assert (chosen.ignored_modules, chosen.warnings) == ((), ())
    assert survey(repository, start="src").ignored_modules == ("nested/_own.py", "src/deep/fast.so")


@pytest.mark.parametrize("folder", ["project", "repository"])
def test_a_fetched_folder_is_neither_taken_nor_linked_unless_it_is_named(request, folder):
    place = request.getfixturevalue(folder)
    write(place, "train.py", "results/model.pt", "runs/1/log", "runs/2/log")
    for fetched in ("results", "runs/1", "runs/2"):
        (place / fetched / ".gitignore").write_text(FETCHED)
    listed = survey(place)
    assert ([path for path in listed.files if path.startswith("r")], listed.links) == ([], ())
    assert survey(place, ["results"]).links == ("results",)


def test_project_link_adds_and_removes_entries_of_the_project(repository):
    write(repository, "data/big", "assets/a", "checkpoints/a")
    listed = survey(repository, ["assets", "!check*"])
    assert listed.files == (".gitignore", "src/model.py", "train.py")
    assert listed.links == ("assets", "data")
    (repository.parent / "elsewhere").mkdir()
    for name in ("dta", "../elsewhere", "/etc", ""):
        with pytest.raises(UsageError, match=r"project\.link"):
            survey(repository, [name])


@pytest.mark.parametrize("folder", ["project", "repository"])
def test_a_file_of_secrets_is_linked_to_unless_git_tracks_it(request, folder):
    place = request.getfixturevalue(folder)
    write(place, ".env", "train.py")
    assert (".env" in survey(place).files, survey(place).links) == (False, (".env",))
    assert (".env" in survey(place, ["!.env"]).files, survey(place, ["!.env"]).links) == (False, ())
    if folder == "repository":
        git(place, "add", "-f", ".env")
        assert (".env" in survey(place).files, survey(place).links) == (True, ())


def test_deleted_files_and_other_folders_of_the_repository_are_no_part_of_it(repository):
    write(repository, "other/other.py", "data/project/train.py", "data/project/__pycache__/a")
    assert survey(repository / "src").files == ("model.py",)
    assert survey(repository / "data/project").files == ("train.py",)  # the outer repository ignores it
    (repository / "train.py").unlink()
    assert survey(repository).files == (".gitignore", "other/other.py", "src/model.py")


def test_submodules_and_repositories_within_are_taken_along(repository, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    write(inner, "lib.py")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "first")
    git(repository, "submodule", "add", "-q", str(inner), "third/party")
    shutil.copytree(inner, repository / "nested")

    files = survey(repository).files

    assert "third/party/lib.py" in files
    assert "nested/lib.py" in files


def test_without_git_caches_and_environments_are_left_out(project):
    write(project, "train.py", "pkg/a.py", "__pycache__/b", ".mypy_cache/x")
    write(project, "venv/lib/x", "venv/pyvenv.cfg", "node_modules/y")

    listed = survey(project, ["pkg"])

    assert listed.files == ("train.py",)
    assert listed.links == ("node_modules", "pkg", "venv")


def test_hostile_names_are_listed_as_they_are(repository):
    names = ["a b", "it's", "new\nline", "$(id)", "-rf", "%j", "é☃", "a\\b", 'q"q', "n" * 250]
    for name in names:
        (repository / name).write_text("")
    Path(os.fsdecode(os.fsencode(repository) + b"/\xff\xfe")).write_text("")

    files = survey(repository).files

    assert {*names, "\udcff\udcfe"} <= set(files)


def test_sockets_fifos_and_links_out_of_the_project_are_warned_of(project, tmp_path):
    write(project, "train.py")
    os.mkfifo(project / "pipe")
    (tmp_path / "shared").mkdir()
    (project / "lib").symlink_to("../shared")
    # A job script's run leaves a link where its log is expected.
    (project / "slurm-77.out").symlink_to(tmp_path / "runs/project/train/k3f9q2/attempts/1/script.log")

    listed = survey(project)

    assert listed.files == ("lib", "train.py")
    assert listed.warnings == (
        "`pipe` is neither a file nor a folder and is left out of the snapshot",
        f"`lib` is a link to `{tmp_path / 'shared'}`, outside the project: its content is not frozen",
    )


def test_runs_kept_inside_the_project_are_neither_taken_nor_linked(repository):
    write(repository, "runs/project/x", "out/serried/y")
    (repository / ".gitignore").write_text("/runs\n")

    listed = survey(repository, leave_out=[repository / "runs", repository / "out/serried"])

    assert listed.files == (".gitignore", "src/model.py", "train.py")
    assert listed.links == ()


def test_a_snapshot_over_the_limit_is_refused_with_the_largest_named(repository, monkeypatch):
    write(repository, "small", "blobs/a.bin", "blobs/b.bin")
    for name, megabytes in {"blobs/a.bin": 120, "blobs/b.bin": 60, "weights.pt": 41}.items():
        with (repository / name).open("wb") as file:
            file.truncate(megabytes * 1_000_000)

    with pytest.raises(UsageError) as caught:
        survey(repository)

    assert caught.value.message == "the snapshot would hold 221.0 MB, more than 200.0 MB"
    assert (caught.value.details or "").splitlines()[:4] == [
        "  180.0 MB  blobs/",
        "  120.0 MB  blobs/a.bin",
        "   60.0 MB  blobs/b.bin",
        "   41.0 MB  weights.pt",
    ]
    assert caught.value.code == snapshot.IN_PLACE
    monkeypatch.setattr(snapshot, "BYTES_LIMIT", 1_000_000_000)
    monkeypatch.setattr(snapshot, "FILES_LIMIT", 2)
    with pytest.raises(UsageError, match="would hold 7 files, more than 2"):
        survey(repository)


def test_the_home_directory_is_no_project(tmp_path, monkeypatch):
    home = tmp_path / "home/ada"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path, Path("/")):
        with pytest.raises(UsageError, match="cannot be a project"):
            survey(folder)


def test_what_git_refuses_to_list_is_an_error_in_its_own_words(repository):
    (repository / ".git/index").write_bytes(b"torn")
    with pytest.raises(UsageError) as caught:
        survey(repository)
    assert "index" in (caught.value.details or "")


def test_a_folder_that_goes_while_the_project_is_listed_is_none_of_it(project, monkeypatch):
    write(project, "train.py", "build/a.o")
    scan = os.scandir

    @contextlib.contextmanager
    def scan_and_lose(folder):
        with scan(folder) as entries:
            found = list(entries)
        monkeypatch.setattr(os, "scandir", scan)
        shutil.rmtree(project / "build")
        yield found

    monkeypatch.setattr(os, "scandir", scan_and_lose)
    assert survey(project).files == ("train.py",)
