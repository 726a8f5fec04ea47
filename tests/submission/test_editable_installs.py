import os
from pathlib import Path

import pytest

from serried.base.errors import UsageError
from serried.submission.snapshot import redirect, site_folders, survey

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


def test_site_folders_are_found_under_a_prefix(tmp_path, site):
    assert site_folders(tmp_path / "venv") == [site]


def test_a_folder_on_the_path_becomes_the_trees_own(project, site):
    (site / "_digits.pth").write_text(f"{project}/src\n")
    assert redirect(survey(project), [site]) == ("src",)


def test_a_link_to_the_project_is_followed(project, site, tmp_path):
    (tmp_path / "alias").symlink_to(project)
    (site / "_digits.pth").write_text(f"{tmp_path}/alias/src\n")
    assert redirect(survey(project), [site]) == ("src",)


def test_old_setuptools_links_count_too(project, site):
    (site / "easy-install.pth").write_text(f"{project}\n")
    (site / "digits.egg-link").write_text(f"{project}/src\n../")
    assert redirect(survey(project), [site]) == ("src", ".")


def test_the_finder_of_setuptools_is_understood(project, site):
    mapping = {"digits": f"{project}/src/digits", "tool": f"{project}/tool.py", "other": "/elsewhere/other"}
    (site / "__editable__.digits-1.pth").write_text(
        "import __editable___digits_1_finder; __editable___digits_1_finder.install()"
    )
    (site / "__editable___digits_1_finder.py").write_text(FINDER.format(mapping=mapping))
    assert redirect(survey(project), [site]) == ("src", ".")


def test_other_projects_and_other_hooks_are_none_of_our_business(project, site, tmp_path):
    sibling = tmp_path / "project-two/src"
    sibling.mkdir(parents=True)
    (site / "a.pth").write_text(f"{sibling}\n# {project}\n\n")
    (site / "b.pth").write_text("import _hook\n")
    (site / "_hook.py").write_text(f"install({str(sibling)!r})\n")
    (site / "c.pth").write_text("import os; x = 1\n")
    assert redirect(survey(project), [site]) == ()


def test_a_package_under_another_name_is_refused(project, site):
    (site / "a.pth").write_text("import finder")
    (site / "finder.py").write_text(FINDER.format(mapping={"numbers": f"{project}/src/digits"}))
    with pytest.raises(UsageError, match="a folder of another name"):
        redirect(survey(project), [site])


def test_a_hook_that_cannot_be_turned_is_refused(project, site):
    (site / "a.pth").write_text("import _digits_editable_loader\n")
    (site / "_digits_editable_loader.py").write_text(f"install({{'digits'}}, {str(project / 'build')!r})\n")
    with pytest.raises(UsageError, match="by a hook that Serried cannot redirect") as caught:
        redirect(survey(project), [site])
    assert "pip install ." in (caught.value.hint or "")


def test_a_folder_that_the_snapshot_leaves_out_is_refused(project, site):
    (project / "__pycache__/links").mkdir(parents=True)
    (site / "a.pth").write_text(f"{project}/__pycache__/links\n")
    with pytest.raises(UsageError, match="which is not in the snapshot"):
        redirect(survey(project), [site])


def test_an_environment_that_is_not_there_has_no_packages():
    assert site_folders(Path(os.devnull)) == []
