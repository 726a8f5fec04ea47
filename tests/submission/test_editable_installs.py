"""Editable installs that point into the project: imports go to the snapshot, or the install is refused."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.submission.snapshot import IN_PLACE, redirect, site_folders, survey

FINDER = """from __future__ import annotations
MAPPING: dict[str, str] = {mapping!r}
NAMESPACES: dict[str, list[str]] = {{}}
def install(): ...
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src/digits").mkdir(parents=True)
    (folder / "src/digits/__init__.py").write_text("")
    (folder / "tool.py").write_text("")
    return folder


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "venv/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    return folder


def redirected(project: Path, site: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """What is redirected with these files of `site`, in which PROJECT is the project's path."""
    for name, text in files.items():
        (site / name).write_text(text.replace("PROJECT", str(project)))
    return redirect(survey(project), [site])


def test_site_folders_are_found_under_a_prefix(tmp_path, site):
    assert site_folders(tmp_path / "venv") == [site]
    assert site_folders(Path(os.devnull)) == []


MAPPING = {"digits": "PROJECT/src/digits", "tool": "PROJECT/tool.py", "other": "/elsewhere/other"}
FINDS = "import __editable___digits_1_finder; __editable___digits_1_finder.install()"


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ({"_digits.pth": "PROJECT/src\n"}, ("src",)),
        ({"_digits.pth": "PROJECT/../alias/src\n"}, ("src",)),
        ({"easy-install.pth": "PROJECT\n", "digits.egg-link": "PROJECT/src\n../"}, ("src", ".")),  # old setuptools
        (
            {"__editable__.digits-1.pth": FINDS, "__editable___digits_1_finder.py": FINDER.format(mapping=MAPPING)},
            ("src", "."),
        ),
        (  # other projects and other hooks
            {
                "a.pth": "PROJECT-two/src\n# PROJECT\n\n",
                "b.pth": "import _hook\n",
                "_hook.py": "install('PROJECT-two/src')\n",
                "c.pth": "import os; x = 1\n",
            },
            (),
        ),
    ],
)
def test_folders_that_installs_add_to_the_path_become_those_of_the_tree(project, site, files, folders):
    (project.parent / "alias").symlink_to(project)
    (project.parent / "project-two/src").mkdir(parents=True)
    assert redirected(project, site, files) == folders


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.pth": "import finder", "finder.py": FINDER.format(mapping={"numbers": "PROJECT/src/digits"})},
            "a folder of another name",
        ),
        (
            {"a.pth": "import _loader\n", "_loader.py": "install({'digits'}, 'PROJECT/build')\n"},
            "by a hook that Serried cannot redirect",
        ),
        ({"a.pth": "PROJECT/__pycache__/links\n"}, "which is not in the snapshot"),
    ],
)
def test_an_install_that_would_still_import_the_project_is_refused(project, site, files, message):
    (project / "__pycache__/links").mkdir(parents=True)
    with pytest.raises(UsageError, match=message) as caught:
        redirected(project, site, files)
    assert caught.value.code == IN_PLACE
