from __future__ import annotations

import os
import subprocess

import pytest

from serried.submission.snapshot import Revision, read_revision

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b"]


def git(folder, *arguments):
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, check=True, env=environment, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "# a b").write_text("one\n" * 20)
    git(tmp_path, "add", ".")
    return tmp_path


def test_a_folder_without_git_has_no_revision(tmp_path):
    assert read_revision(tmp_path) == Revision(None, None, "")


def test_before_the_first_commit_there_is_no_revision(repository):
    assert read_revision(repository) == Revision(None, None, "")


def test_an_untouched_work_tree_is_its_commit(repository):
    git(repository, "commit", "-qm", "first")
    (repository / "untracked").touch()
    assert read_revision(repository) == Revision(git(repository, "rev-parse", "HEAD"), "trunk", "")


def test_a_detached_head_has_no_branch(repository):
    git(repository, "commit", "-qm", "first")
    git(repository, "checkout", "-q", "--detach")
    assert read_revision(repository).branch is None


def test_what_has_changed_is_a_diff_that_applies_to_the_commit(repository):
    git(repository, "commit", "-qm", "first")
    git(repository, "mv", "# a b", "train.py")
    (repository / "train.py").write_text("one\n" * 20 + "two\n")

    revision = read_revision(repository)

    assert (revision.commit, revision.is_dirty) == (git(repository, "rev-parse", "HEAD"), True)
    git(repository, "reset", "-q", "--hard")
    subprocess.run(["git", "apply"], input=revision.diff, cwd=repository, check=True, text=True)
    assert (repository / "train.py").read_text() == "one\n" * 20 + "two\n"
