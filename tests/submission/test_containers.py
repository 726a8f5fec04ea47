"""Which image and which runtime a plan has, and what cannot be."""

from __future__ import annotations

import os
import shlex

import pytest

from building import a_plan
from serried.base.errors import UsageError
from serried.schema.plan import Container, Environment
from serried.submission import containers
from serried.submission.containers import image_recipe
from stub_scheduler import site_of
from tables import for_each


@pytest.fixture
def settled(tmp_path):
    """Settles a plan's container; an image and its runtimes are there."""
    (tmp_path / "i.sif").write_text("")
    (tmp_path / "folder").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apptainer", "ch-run"):
        (programs / name).touch(mode=0o700)

    def settle(*, scheduler="slurm", local_disk=None, environment=None, path=str(programs), root="/scratch", **said):
        container = Container(**{"image": str(tmp_path / "i.sif"), **said})
        site = site_of("fir", scheduler, root, local_disk=local_disk)
        plan = a_plan()._replace(container=container, site=site, environment=environment or Environment())
        return containers.settle(plan, {"PATH": path}).container

    return settle


def test_the_first_runtime_that_is_here_is_taken_and_images_are_copied_where_nodes_have_a_disk(settled, tmp_path):
    image = str(tmp_path / "i.sif")
    assert settled() == Container(image, "apptainer", local=False)
    assert settled(local_disk="/tmp") == Container(image, "apptainer", local=True)
    assert settled(local_disk="/tmp", local=False) == Container(image, "apptainer", local=False)
    assert settled(local_disk="/tmp", image=str(tmp_path / "folder")).local is False


def test_a_runtime_that_only_a_module_brings_is_taken_to_be_apptainer(settled):
    assert settled(path="/nowhere", environment=Environment(modules=("apptainer",))).runtime == "apptainer"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"path": "/nowhere"}, "no container runtime on PATH: none of `apptainer`, `singularity`, `ch-run`"),
        ({"image": "/no/such.sif"}, "the image `/no/such.sif` does not exist"),
        ({"runtime": "ch-run"}, "`ch-run` cannot run `.*i.sif`, which is Apptainer's kind of image"),
        (
            {"runtime": "/opt/ch-run", "image": "/", "binds": (r"/a\:b",)},
            "`/opt/ch-run` cannot mount a path with a `:`",
        ),
        ({"runtime": "ch-run", "image": "/", "binds": ("/a:ro",)}, "`ch-run` cannot mount `/a` read-only"),
        ({"local": True}, "`container.local` copies .* but `fir` has no `local_disk`"),
        ({"local": True, "local_disk": "/tmp", "image": "/"}, "`container.local` copies .* but `/` is a folder"),
        ({"image": "docker://python:3.11"}, "the image from `docker://python:3.11` is not built"),
        ({"environment": Environment(venv="/v")}, "ranks run in a container, but `environment` names a virtual"),
        ({"runtime": "pyxis", "scheduler": "pbs"}, "`pyxis` is part of Slurm"),
        ({"runtime": "ch-run", "image": "/", "writable": True}, "`ch-run` has no option like `--writable-tmpfs`"),
        (
            {"runtime": "pyxis", "binds": ("$SLURM_TMPDIR/a:/a",)},
            "`container.binds` cannot use .* with `pyxis`: it is set only",
        ),
        ({"runtime": "pyxis", "contained": True}, "`pyxis` does not support `contained`"),
        ({"runtime": "pyxis", "binds": ("/a,b",)}, "`pyxis` cannot mount a path with a `,` in it: `/a,b`"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(settled, said, message):
    with pytest.raises(UsageError, match=message):
        settled(**said)


@for_each("container", [None, Container("/", "/opt/ch-run")])
@for_each("each", [(), (("true",), ("%runscript", "x"))])
def test_only_an_image_of_apptainer_s_has_a_script_of_its_own(container, each):
    plan = a_plan()._replace(container=container, command=("true",) if each else ("%runscript",))
    with pytest.raises(UsageError, match=r"`%runscript` runs the script of an Apptainer image"):
        containers.check_runscript(plan, each)
    apptainer = plan._replace(container=Container("/i.sif", "/opt/apptainer"))
    containers.check_runscript(apptainer, each)


def test_a_trial_here_leaves_out_what_only_the_node_has():
    said = Container("/i.sif", "apptainer", ("/a", "$SLURM_TMPDIR/b:/b"), writable=True, options=("--fakeroot",))
    assert containers.entering(said) == [
        *("apptainer", "--quiet", "exec", "--no-home", "--writable-tmpfs"),
        *("--bind", "/a", "--fakeroot", "/i.sif"),
    ]


def test_an_image_is_named_by_what_it_is_made_from(tmp_path):
    (tmp_path / "requirements.txt").write_text("numpy\n")
    said = {"image": "docker://ghcr.io/x/torch:2.4", "requirements": str(tmp_path / "requirements.txt")}

    made = image_recipe(Container(**said), tmp_path)

    definition = (
        "Bootstrap: docker\nFrom: ghcr.io/x/torch:2.4\n\n"
        "%files\n    requirements.txt /opt/serried/requirements.txt\n\n"
        "%post\n    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore\n"
        "    python3 -m pip install --no-cache-dir -r /opt/serried/requirements.txt\n"
    )
    assert f"printf %s {shlex.quote(definition)} >" in made.commands
    assert made.name.startswith("torch-2.4-")
    assert image_recipe(Container(**said), tmp_path).name == made.name
    (tmp_path / "requirements.txt").write_text("numpy==2\n")
    assert image_recipe(Container(**said), tmp_path).name != made.name
    assert image_recipe(Container(**{**said, "image": "docker://ghcr.io/x/torch:2.5"}), tmp_path).name != made.name


def test_what_a_definition_copies_in_is_a_part_of_the_name(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("1")
    (tmp_path / "base.sif").write_text("1")
    (tmp_path / "x.def").write_text(
        "Bootstrap: localimage\nFrom: base.sif\n\n%files\n  src /opt/src # the code\n  missing\n  *.cfg /etc\n"
        "  'my model' /m\n\n%files from build\n  of-the-stage /usr\n\n%post\n  src\n"
    )

    def name() -> str:
        return image_recipe(Container(str(tmp_path / "x.def")), tmp_path).name

    names = [name()]
    for path in ("src/a.py", "b.cfg", "my model", "base.sif"):
        (tmp_path / path).write_text("another")
        names.append(name())
    assert len(set(names)) == len(names)

    (tmp_path / "of-the-stage").write_text("the host's has nothing to do with it")
    assert name() == names[-1]


def test_a_definition_and_a_list_of_packages_are_refused_together(tmp_path):
    (tmp_path / "x.def").write_text("")
    with pytest.raises(UsageError, match=r"on top of an image, but `container\.image` is a definition"):
        image_recipe(Container(str(tmp_path / "x.def"), requirements=os.devnull), tmp_path)


def test_an_image_that_is_there_needs_no_build(tmp_path):
    assert image_recipe(Container("/i.sif"), tmp_path) is None
