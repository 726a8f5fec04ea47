"""The words that start a rank in a container, what it sees of the host and what it finds set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from building import a_plan
from serried.agent import containers
from serried.agent.attempt import Attempt
from serried.agent.node_disk.folder import SCRATCH
from serried.schema.binds import Bind
from serried.schema.layout import RunDirectory
from serried.schema.plan import Container, Data, Environment, Source, Staged
from stub_scheduler import site_of


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes the container of a run whose folders are there."""
    for name in ("scratch/digits/train/k3f9q2", "home/digits", "private"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def made(*, gpus=0, environment=None, local_disk=None, data=None, **said):
        container_ = Container(**{"image": "/i.sif", "runtime": "apptainer", "local": False, **said})
        plan = a_plan(root=str(tmp_path / "scratch"), gpus=gpus)._replace(
            container=container_,
            data=data,
            environment=environment or Environment(),
            source=Source(directory=str(tmp_path / "home/digits"), snapshot=False),
            site=site_of("fir", "slurm", str(tmp_path / "scratch"), local_disk=local_disk),
        )
        run = RunDirectory(tmp_path / "scratch/digits/train/k3f9q2")
        work = Attempt(run, plan, None, 1)
        return containers.of(work, tmp_path / "private")

    return made


def entered(inside, environment=()):
    """The words before the program's own, and the environment."""
    words, environment = inside.enter(["python", "train.py"], dict(environment))
    assert words[-3:] == ["sh", "python", "train.py"]
    return words[: words.index("/bin/sh")], environment


def test_apptainer_sees_home_tmp_and_the_project_s_folders_under_their_own_names(make, tmp_path):
    words, _ = entered(make(binds=("/srv/data:/data:ro",)))

    mounts = ["/tmp", "/srv/data:/data:ro", str(tmp_path / "home"), str(tmp_path / "private")]
    assert words[:3] == ["apptainer", "--quiet", "exec"]
    assert words[-3:] == ["--pwd", str(tmp_path / "home/digits"), "/i.sif"]
    within_tmp = str(tmp_path).startswith("/tmp/")
    given = {words[at + 1] for at, word in enumerate(words) if word == "--bind"}
    assert given == set(mounts[:2] if within_tmp else [*mounts, str(tmp_path / "scratch/digits/train/k3f9q2")])
    assert "--nv" not in words


def test_what_the_run_links_to_is_there_where_its_root_is_named_by_a_link(make, tmp_path):
    """library.zip leads to the path as it was spelled, which a mount of the real folder alone does not have."""
    store = tmp_path / "scratch/.serried/agents"
    store.mkdir(parents=True)
    (store / "library-1.zip").write_text("zip")
    (tmp_path / "alias").symlink_to("scratch")
    (tmp_path / "scratch/digits/train/k3f9q2/library.zip").symlink_to(tmp_path / "alias/.serried/agents/library-1.zip")

    words, _ = entered(make(contained=True))

    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert {str(store), str(tmp_path / "alias/.serried/agents")} <= set(mounts)


def test_gpus_are_shown_to_a_job_that_has_some(make):
    words, _ = entered(make(gpus=2))
    assert "--nv" in words


def test_a_contained_rank_sees_a_home_and_a_tmp_of_the_attempt(make, tmp_path):
    words, environment = entered(make(contained=True))

    private = tmp_path / "private"
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert mounts[:3] == [f"{private}/tmp:/tmp", f"{private}/var-tmp:/var/tmp", f"{private}/home:{tmp_path}/home"]
    assert set(mounts[3:]) == {
        str(tmp_path / name) for name in ("home/digits", "private", "scratch/digits/train/k3f9q2")
    }
    assert (private / "home/digits").is_dir()
    assert environment["SERRIED_TOLD_TMPDIR"] == "/tmp"


def test_what_names_the_host_s_programs_stays_outside(make):
    of_host = ("PYTHONPATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "LOADEDMODULES", "BASH_FUNC_module%%")
    job = {"SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO"}
    shell = {**dict.fromkeys(of_host, "/x"), "PATH": "/usr/bin", "EDITOR": "vi", **job}

    assert make().inherited(shell) == {"EDITOR": "vi", **job}
    assert make(contained=True).inherited(shell) == job
    named = Environment(env={"PATH": "/mine"}, inherit=("EDIT*",))
    assert make(contained=True, environment=named).inherited(shell) == {"PATH": "/usr/bin", "EDITOR": "vi", **job}


def test_values_of_the_experiment_hold_inside_whatever_the_image_sets(make):
    inside = make(environment=Environment(env={"GREETING": "x"}, secrets=("KEY",)))
    said = {
        "GREETING": 'it\'s "$(id)"\n`id`\\',
        "KEY": "s3",
        "HOME": "/h",
        "PYTHONPATH": "/run/library.zip",
        "RANK": "3",
    }
    words, environment = inside.enter(["python", "train.py"], said)

    shell = words[words.index("/bin/sh") : -2]
    image = {"GREETING": "the image's", "PYTHONPATH": "/opt/of-the-image", "HOME": "/root", "PATH": "/usr/bin:/bin"}
    script = [*shell, "env", "-0"]
    done = subprocess.run(script, env={**environment, **image}, capture_output=True, check=True, text=True)

    found = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
    wanted = {**said, "PYTHONPATH": "/run/library.zip:/opt/of-the-image", "TMPDIR": "/tmp", "PYTHONNOUSERSITE": "1"}
    assert {name: found[name] for name in wanted} == wanted
    assert [name for name in found if name.startswith(containers.INSIDE)] == []
    assert [word for word in words if "s3" in word] == []


def test_charliecloud_is_given_every_mount_point_without_a_change_to_the_image(make, tmp_path):
    image = tmp_path / "image"
    for name in ("usr/bin", "etc", "opt", "tmp"):
        (image / name).mkdir(parents=True)
    (image / "bin").symlink_to("usr/bin")
    (image / "etc/hostname").write_text("x")
    (image / "opt/tool").mkdir()
    before = sorted(image.rglob("*"))

    words, environment = entered(
        make(image=str(image), runtime="/opt/ch/bin/ch-run", binds=("/usr/share:/opt/data/shared",))
    )

    seen = tmp_path / "private/view"
    assert (words[0], words[-2:]) == ("/opt/ch/bin/ch-run", [str(seen), "--"])
    assert environment["PATH"] == containers.SYSTEM_PATH
    assert sorted(image.rglob("*")) == before
    assert (seen / "bin").readlink() == Path("usr/bin")
    assert (seen / "opt/data/shared").is_dir()
    assert (seen / "opt/tool").readlink() == Path("/.image/opt/tool")
    assert (seen / "etc/hostname").readlink() == Path("/.image/etc/hostname")
    assert {f"--bind={image}:/.image", f"--bind={image}/usr:/usr", "--bind=/usr/share:/opt/data/shared"} <= set(words)


def test_of_folders_that_lie_in_one_another_one_is_mounted_and_a_link_s_two_ends(tmp_path):
    home, scratch = tmp_path / "ada", tmp_path / "scratch/run"
    scratch.mkdir(parents=True)
    home.mkdir()
    (home / "runs").symlink_to(scratch)

    ours = containers.covering([f"{home}/runs", f"{home}/x", str(home)], [Bind("/elsewhere", f"{home}/data/a/b")])

    assert sorted(ours) == sorted(
        [Bind(str(home), str(home)), Bind(str(scratch), str(scratch)), Bind("/elsewhere", f"{home}/data/a/b")]
    )
    assert ours[-1] == Bind("/elsewhere", f"{home}/data/a/b")


def test_data_that_is_read_where_it_is_can_be_seen(make, tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "imagenet").mkdir()
    data = Data((Staged(str(tmp_path / "pool"), "pool"),), require=(str(tmp_path / "imagenet"),))
    seen = {bind.source for bind in make(data=data, contained=True).binds()}
    assert {str(tmp_path / "pool"), str(tmp_path / "imagenet")} <= seen


def test_a_writable_container_and_further_options_are_what_the_runtime_is_told(make):
    words, _ = entered(make(writable=True, options=("--fakeroot", "--env-file=a b")))
    assert words[:5] == ["apptainer", "--quiet", "exec", "--no-home", "--writable-tmpfs"]
    assert words[-5:] == ["--fakeroot", "--env-file=a b", "--pwd", words[-2], "/i.sif"]
    words, _ = entered(make(runtime="ch-run", image="/", options=("--unset-env=X",)))
    assert words[-4:] == ["--unset-env=X", words[-3], "/", "--"]


def test_a_folder_on_the_node_s_own_disk_is_bound_and_made(make, tmp_path, monkeypatch):
    def mounts(*binds):
        words, _ = entered(make(binds=binds))
        return [words[at + 1] for at, word in enumerate(words) if word == "--bind"]

    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert f"{tmp_path}/private/{SCRATCH}/out:/out" in mounts("$SLURM_TMPDIR/out:/out")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "of the site"))
    assert f"{tmp_path}/of the site/out:/out:ro" in mounts("$SLURM_TMPDIR/out:/out:ro")
    assert (tmp_path / "of the site/out").is_dir()
    assert f"{tmp_path}/of the site/own" in mounts("$SLURM_TMPDIR/own")
