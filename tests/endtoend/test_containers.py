"""Ranks in real containers, on this machine and on a real Slurm of two nodes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import containing
from place import HAS_PBS
from serried.schema.names import elastic_id
from trees import holding
from waiting import until

CANARY = f'canary-{os.getpid()}-8b1f6e $(id) "it\'s"\nand a line'
"""Of this process alone: a rank looks for it among all there are."""
DATA = 'da,ta it\'s "é" $(id)'
"""A folder's name that every quoting has to survive. (No `:`, which Charliecloud cannot mount.)"""

RANK = """\
import json, os, pathlib, socket, sys, tempfile
import serried
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
there = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", there[1]))
    others = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(other.recv(9)) for other in others)
    for other in others:
        other.sendall(b"%d" % total)
else:
    import time
    while True:
        try:
            other = socket.create_connection(there)
            break
        except OSError:
            time.sleep(0.05)
    other.sendall(b"%d" % rank)
    total = int(other.recv(9))
home, seen = pathlib.Path(os.environ["HOME"]), []
for command in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        seen += [str(command)] if os.environ["WANDB_API_KEY"].split()[0].encode() in command.read_bytes() else []
    except OSError:
        pass
(home / f"written-{rank}").write_text("x")
with tempfile.TemporaryFile(dir="/tmp"):  # may be this machine's own, where nothing must stay
    pass
facts = {
    "mark": pathlib.Path("/etc/serried-image").read_text(),
    "total": total,
    "argv": sys.argv[1:],
    "secret": os.environ["WANDB_API_KEY"],
    "set": os.environ["GREETING"],
    "path": os.environ["PATH"],
    "user_site": os.environ["PYTHONNOUSERSITE"],
    "foreign": sorted(name for name in os.environ if name in ("VIRTUAL_ENV", "LD_PRELOAD", "OF_THE_SHELL")),
    "image_sets": os.environ["OF_THE_IMAGE"],
    "told": [name for name in os.environ if "TOLD" in name],
    "library": serried.__file__,
    "directory": os.getcwd(),
    "data": pathlib.Path("data/sample").read_text(),
    "bound": pathlib.Path(sys.argv[1], "sample").read_text(),
    "stop_file": pathlib.Path(os.environ["SERRIED_STOP_FILE"]).parent.is_dir(),
    "home": sorted(path.name for path in home.iterdir() if path.name.startswith("written-")),
    "on_argv": seen,
    "node": os.environ.get("SLURMD_NODENAME", socket.gethostname()),
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "image": os.environ.get("APPTAINER_CONTAINER"),
}
pathlib.Path(os.environ["SERRIED_RESULTS_DIR"], f"{rank}.json").write_text(json.dumps(facts))
"""

STOPPED = """\
import os, pathlib, signal, sys, time
word = pathlib.Path(os.environ["SERRIED_STOP_FILE"])
print("up", flush=True)
while True:
    if word.exists() and word.read_text():
        sys.exit(f"heard {word.read_text()} as {os.environ['USER']}")
    time.sleep(0.05)
"""

RUNSCRIPT = """\
#!/bin/sh
echo scratch >/etc/written && echo "$RANK" >"/out dir/rank-$RANK"
until [ -e "/out dir/rank-0" ] && [ -e "/out dir/rank-1" ]; do sleep 0.05; done
printf '%s\\n' "$(cat /etc/serried-image) $(cat /etc/written) $#" "$@"
"""

FAILS = """\
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "3":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("this is the end", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    return containing.skeleton(tmp_path_factory.mktemp("images") / "a root")


@pytest.fixture(params=["apptainer", "ch-run"])
def runtime(request) -> str:
    containing.path_with(request.param)
    return request.param


@pytest.fixture
def image(runtime, rootfs, tmp_path) -> Path:
    if runtime == "ch-run":
        return rootfs
    return containing.build(rootfs, tmp_path / "it's an image.sif", containing.path_with(runtime))


@pytest.fixture
def made(image, runtime, tmp_path):
    """Makes a place's project one that runs `rank.py` in the image, with hostile names wherever there are names."""

    def make(place, **container):
        data = tmp_path / DATA
        data.mkdir()
        (data / "sample").write_text("a sample")
        folder = place.project / 'a project it\'s "$(id)", é'
        folder.mkdir()
        (folder / "data").symlink_to(data)
        (folder / "rank.py").write_text(RANK)
        binds = [*containing.needed(), f"{data}:/srv/{DATA}"]
        settings = {"image": str(image), "runtime": runtime, "binds": binds, **container}
        experiment = {"command": [sys.executable, "rank.py", f"/srv/{DATA}", "$(id) \"'"]}
        environment = {"secrets": ["WANDB_API_KEY"], "env": {}}
        (folder / "serried.toml").write_text(
            containing.table("project", {"link": ["data"]})
            + containing.table("experiments.x", experiment)
            + containing.table("experiments.x.container", settings)
            + containing.table("experiments.x.environment", {"secrets": environment["secrets"]})
            + containing.table("experiments.x.environment.env", {"GREETING": "$HOME `id` \\n"})
        )
        path = containing.path_with(runtime)
        extra = {"PATH": path, "WANDB_API_KEY": CANARY, "OF_THE_SHELL": "1", "VIRTUAL_ENV": sys.prefix, "USER": "ada"}
        return type(place)(place.cluster, folder, {**place.environ, **extra})

    return make


def facts_of(place, run, ranks):
    return [json.loads((place.directory(run) / "results" / f"{rank}.json").read_text()) for rank in range(ranks)]


def expected(place, run, ranks, **more):
    """What every rank has to find, whatever runs it."""
    directory = place.directory(run)
    return {
        "mark": "inside\n",
        "total": sum(range(ranks)),
        "argv": [f"/srv/{DATA}", "$(id) \"'"],
        "secret": CANARY,
        "set": "$HOME `id` \\n",
        "path": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "user_site": "1",
        "image_sets": 'it\'s "here" $(id)',
        "told": [],
        "library": f"{directory}/library.zip/serried/__init__.pyc",
        "directory": str(directory / "source"),
        "data": "a sample",
        "bound": "a sample",
        "stop_file": True,
        "on_argv": [],
        **more,
    }


@pytest.mark.parametrize("name", [pytest.param("slurm", marks=pytest.mark.slurm), *(["pbs"] if HAS_PBS else [])])
def test_ranks_on_two_nodes_run_in_containers_and_meet(name, request, made, runtime, tmp_path):
    place = made(request.getfixturevalue(name))
    disk = tmp_path / "node's own"
    disk.mkdir()

    run = place.submit("x", "--nodes", "2", "--gpus", "2", "--set", f"clusters.{name}.local_disk={disk}")

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    facts = facts_of(place, run, 4)
    # PBS without its cgroup hook says of no GPU whose it is.
    wanted = expected(place, run, 4, foreign=["OF_THE_SHELL"], gpus="0,1" if name == "slurm" else None)
    assert [{name: fact[name] for name in wanted} for fact in facts] == [wanted] * 4
    assert len({fact["node"] for fact in facts}) == 2
    secret = CANARY.partition(" ")[0].encode()
    assert [path for path in holding(tmp_path, secret) if path.parent.name != "results"] == []
    if runtime == "apptainer":  # its image is a file: each node copied it once, and nothing of that is left
        assert {Path(fact["image"]).parent.parent.parent for fact in facts} == {disk}
        shown = place.serried("show", run).stdout
        assert shown.count("copied the image to its own disk") + shown.count("has a copy of the image") == 2
        until(lambda: list(disk.rglob("*.*")) == [])


def test_contained_ranks_have_a_home_and_a_tmp_of_their_own_and_only_the_job_s_variables(local, made, wait_until):
    place = made(local, contained=True)

    run = place.submit("x", "--ranks", "2")

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    wanted = expected(place, run, 2, foreign=[])
    facts = facts_of(place, run, 2)
    assert [{name: fact[name] for name in wanted} for fact in facts] == [wanted] * 2
    assert {"written-0", "written-1"} >= set(facts[0]["home"]) >= {"written-0"}
    assert list(Path(place.environ["HOME"]).glob("written-*")) == []
    wait_until(lambda: list(Path("/tmp").glob(f"serried-*/jobs/{run}*")) == [])


@pytest.mark.slurm
def test_a_rank_of_srun_that_is_killed_in_its_container_is_named_and_leaves_nothing(
    slurm, made, wait_until, marked_processes
):
    place = made(slurm)
    (place.project / "rank.py").write_text(FAILS)

    run = place.submit("x", "--nodes", "2", "--ranks", "2", "--launch", "srun")

    status, end = place.wait(run)
    assert (status, end["state"], end["exit_code"]) == (1, "FAILED", 137), place.serried("why", run).stdout
    failure = place.why(run)["first_failure"]
    assert (failure["rank"], failure["node"], failure["signal"], failure["tail"]) == (3, 1, 9, ["this is the end"])
    wait_until(lambda: marked_processes(run) == [])


@pytest.mark.torch
@pytest.mark.parametrize("runtime", ["apptainer"], indirect=True)
def test_torchrun_runs_in_the_container_with_its_ranks(local, made):
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    place = made(local, contained=True)
    (place.project / "rank.py").write_text(
        "import os, sys\n"
        "print(open('/etc/serried-image').read().strip(), os.environ['TORCHELASTIC_RUN_ID'], flush=True)\n"
        "sys.exit(3 if os.environ['RANK'] == '1' else 0)\n"
    )

    run = place.submit("x", "--ranks", "2", "--launch", "torchrun")

    status, end = place.wait(run)
    assert (status, end["exit_code"]) == (1, 3), place.serried("why", run).stdout
    failure = place.why(run)["first_failure"]
    assert (failure["rank"], failure["tail"]) == (1, [f"inside {elastic_id(run + '1')}"])


def test_a_request_to_save_reaches_a_contained_rank(local, made, wait_until):
    place = made(local, contained=True)
    (place.project / "rank.py").write_text(STOPPED)
    run = place.submit("x", "--ranks", "1")
    log = place.directory(run) / "attempts/1/node-0/rank-0.log"
    wait_until(lambda: log.exists() and "up" in log.read_text())

    place.serried("stop", "-y", "--save", run)

    assert place.wait(run)[1]["state"] == "CANCELLED"
    assert "heard user as ada" in log.read_text()


def test_a_program_or_an_image_that_is_not_there_is_named(local, made, image):
    place = made(local)

    run = place.submit("x", "--ranks", "1", "--set", 'command=["no-such-program"]')

    assert place.wait(run)[1]["exit_code"] == 127
    assert "no-such-program" in "\n".join(place.why(run)["first_failure"]["tail"])
    shutil.move(image, place.project / "elsewhere")
    refused = place.serried("submit", "--cluster", "local", "x", "--ranks", "1")
    assert refused.returncode == 2
    assert f"the image `{image}` does not exist" in refused.stderr
    shutil.move(place.project / "elsewhere", image)


@pytest.mark.parametrize("runtime", ["apptainer"], indirect=True)
def test_an_image_runs_its_own_script_writes_anywhere_and_shares_a_folder_of_the_node(local, runtime, tmp_path):
    image = containing.skeleton(tmp_path / "own")
    (image / ".singularity.d").mkdir()
    script = image / ".singularity.d/runscript"
    script.write_text(RUNSCRIPT)
    script.chmod(0o755)
    (image / "out dir").mkdir()
    settings = {
        "image": str(image),
        "runtime": runtime,
        "writable": True,
        "binds": [*containing.needed(), "$SLURM_TMPDIR/out:/out dir"],
        "options": ["--hostname", "inside"],
    }
    (local.project / "serried.toml").write_text(
        containing.table("experiments.x", {"workdir": "."}) + containing.table("experiments.x.container", settings)
    )
    place = type(local)(local.cluster, local.project, {**local.environ, "PATH": containing.path_with(runtime)})

    run = place.submit("x", "--ranks", "2")

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    logs = place.directory(run) / "attempts/1/node-0"
    assert [(logs / f"rank-{rank}.log").read_text() for rank in range(2)] == ["inside scratch 0\n"] * 2
    assert not (image / "etc/written").exists()
    assert list((image / "out dir").iterdir()) == []

    more = place.submit("x", "--ranks", "2", "--set", 'command=["%runscript", "{rank}", "a b"]')

    assert place.wait(more)[0] == 0, place.serried("why", more).stdout
    log = place.directory(more) / "attempts/1/node-0/rank-1.log"
    assert log.read_text() == "inside scratch 2\n1\na b\n"
