"""Commands on a laptop for a cluster 40 ms and 20 Mbit/s away, beside the same on the login node, and beside ssh.

The login node is an sshd of the tests, in namespaces of its own, with the lab's Slurm behind it. The line is a proxy
that delays and slows what passes. Needs root, openssh-server and rsync.

NeMo-Run takes part if NEMO_RUN names a Python that has it (0.11.1 needs leptonai==0.26.9). `--quick` measures `submit`
and `ps` alone, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from measure import ROOT, SILENT, Figure, Timing, alternate, environment, record, seconds
from world import World, world

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "remote"))
from sshd import Sshd

CLUSTER, HOST = "birch", "fir"
ONE_WAY_SECONDS = 0.02
BYTES_PER_SECOND = 20e6 / 8
QUEUED = 64
"""Pieces of 4 KiB that the line holds, about what a router queues. More waits at the sender."""
ROUNDS = 9
LINES, SKIPPED = 40, 5
MEGABYTES = 100
UNCHANGED = 10_000
NEMO_RUN = """
import sys, nemo_run as run
port, key, folder, conf = sys.argv[1:]
there = {"host": "127.0.0.1", "port": int(port), "user": "ada", "identity": key, "job_dir": folder}
tunnel = run.SSHTunnel(**there, pre_command=f"export SLURM_CONF={conf}")
slurm = run.SlurmExecutor(account="x", partition="lab", time="00:05:00", tunnel=tunnel)
slurm.packager = run.GitArchivePackager()
with run.Experiment("bench", executor=slurm) as experiment:
    experiment.add(run.Script(inline="true"), name="true", executor=slurm)
    experiment.run(detach=True)
"""
COMMAND = ("--ranks", "1", "--time", "5m", "--", "python3", "-c", "pass")


class Line:
    """A port of the loopback address that leads to another one as slowly as a far one. It counts what passes."""

    def __init__(self, port: int) -> None:
        self._behind, self.port, self.bytes_up = port, 0, 0
        is_open = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(is_open)), daemon=True).start()
        is_open.wait()

    async def _serve(self, is_open: threading.Event) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        is_open.set()
        await server.serve_forever()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(
            self._one_way(reader, here, is_up=True), self._one_way(there, writer, is_up=False), return_exceptions=True
        )

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool) -> None:
        now = asyncio.get_running_loop().time
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)

        async def deliver() -> None:
            while (piece := await on_the_way.get())[1]:
                await asyncio.sleep(max(0.0, piece[0] - now()))
                writer.write(piece[1])
                await writer.drain()
            writer.close()

        delivery, is_free_at = asyncio.create_task(deliver()), 0.0
        with suppress(OSError):
            while data := await reader.read(4096):
                self.bytes_up += len(data) * is_up
                is_free_at = max(is_free_at, now()) + len(data) / BYTES_PER_SECOND
                await on_the_way.put((is_free_at + ONE_WAY_SECONDS, data))
        await on_the_way.put((0.0, b""))
        await delivery


class Both:
    """A laptop and the login node: who types where."""

    def __init__(self, here: World, far: Sshd, line: Line) -> None:
        self.here, self.far, self.line = here, far, line
        laptop = here.folder / "laptop"
        settings = laptop / ".config" / "serried" / "config.toml"
        settings.parent.mkdir(parents=True)
        root = here.folder / "home" / "runs"
        settings.write_text(
            f'[clusters.{CLUSTER}]\nlogin = "{HOST}"\nmatch.hostname = ["{HOST}-login*"]\nroot = "{root}"\n'
        )
        plain = {name: value for name, value in here.env.items() if name not in here.slurm.variables}
        self.env: Mapping[str, str] = {**plain, "HOME": str(laptop), "SERRIED_SSH": str(far.ssh)}
        self.control = (
            "-o",
            f"ControlPath={here.folder}/control",
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=600",
        )
        subprocess.run([far.ssh, *self.control, HOST, "true"], check=True, **SILENT)

    def typed_there(self, *words: str) -> float:
        return seconds([self.here.bin / "serried", *words], env=self.here.env, cwd=self.here.project)

    def typed_here(self, *words: str) -> float:
        return seconds([self.here.bin / "serried", *words], env=self.env, cwd=self.here.project)

    def output(self, *words: str) -> str:
        argv = [self.here.bin / "serried", *words]
        return subprocess.run(
            argv, env=self.env, cwd=self.here.project, check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()

    def ssh(self, command: str) -> float:
        return seconds([self.far.ssh, *self.control, HOST, f"bash -lc {shlex.quote(command)}"])

    def nemo_run(self) -> float:
        conf, home = self.here.slurm.variables["SLURM_CONF"], self.here.folder / "home"
        argv = [os.environ["NEMO_RUN"], "-c", NEMO_RUN, str(self.line.port), self.far.key, home / "nemo", conf]
        path = f"{self.far.ssh.parent}:{self.env['PATH']}"  # its rsync starts an ssh of its own
        env = {**self.env, "PATH": path, "NEMORUN_HOME": str(self.here.folder / "nemo")}
        return seconds(argv, env=env, cwd=self.here.project)

    def by_hand(self) -> float:
        """What people do without a tool: copy the project, and submit over there."""
        shell = " ".join(map(str, (self.far.ssh, *self.control)))
        copied = seconds(["rsync", "-a", "-e", shell, f"{self.here.project}/", f"{HOST}:by-hand/"])
        return copied + self.ssh("cd by-hand && sbatch --output=/dev/null --wrap true")


@contextmanager
def both() -> Iterator[Both]:
    with world(environment()) as here, tempfile.TemporaryDirectory(prefix="serried-line-") as place:
        home = here.folder / "home"
        variables = {**here.slurm.variables, **{name: here.env[name] for name in ("PATH", "SCRATCH")}}
        (home / ".bash_profile").write_text("".join(f"export {name}='{value}'\n" for name, value in variables.items()))
        with Sshd(Path(place), HOST, home=home) as far:
            line = Line(far.port)
            for path in (far.ssh_config, far.ssh_config.with_name("known_hosts")):
                path.write_text(path.read_text().replace(str(far.port), str(line.port)))
            with far.ssh_config.open("a") as config:  # for those who name the address
                config.write(f'Host 127.0.0.1\n  UserKnownHostsFile "{far.ssh_config.with_name("known_hosts")}"\n')
            yield Both(here, far, line)


def extra(what: str, laptop: Timing, node: Timing, beside: str, *, most: float) -> Figure:
    """The figure of a command: what it takes longer on the laptop."""
    more = (laptop.median - node.median) / 1000
    return Figure(
        what, f"{more:.2f} s more: {laptop}", f"on the login node: {node}{beside}", f"≤ {most} s more", more <= most
    )


def commands(line: Both) -> list[Figure]:
    contenders = {
        "submit here": partial(line.typed_here, "submit", "--cluster", CLUSTER, *COMMAND),
        "submit there": partial(line.typed_there, "submit", *COMMAND),
        "by hand": line.by_hand,
        "ps here": partial(line.typed_here, "ps"),
        "ps there": partial(line.typed_there, "ps"),
        "squeue": partial(line.ssh, "squeue --me"),
    }
    if "NEMO_RUN" in os.environ:
        contenders["NeMo-Run"] = line.nemo_run
    took = alternate(contenders, ROUNDS)
    nemo = f"; NeMo-Run, whose tunnel logs in twice: {took['NeMo-Run']}" if "NeMo-Run" in took else ""
    by_hand = f"; `rsync -a` and `ssh {HOST} sbatch`: {took['by hand']}{nemo}"
    squeue = f"; `ssh {HOST} squeue`: {took['squeue']}"
    return [
        extra("`serried submit`, a project of 40 files", took["submit here"], took["submit there"], by_hand, most=1.5),
        extra("`serried ps`", took["ps here"], took["ps there"], squeue, most=0.3),
    ]


def unchanged(line: Both) -> Figure:
    """What a second submit of many files sends."""
    for number in range(UNCHANGED):
        path = line.here.project / f"part{number // 100}" / f"{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"VALUE = {number}\n")
    line.typed_here("submit", "--cluster", CLUSTER, *COMMAND)
    before, sent = line.line.bytes_up, []
    took = Timing.of([line.typed_here("submit", "--cluster", CLUSTER, *COMMAND) for _ in range(3)])
    sent = (line.line.bytes_up - before) / 3000
    there = Timing.of([line.typed_there("submit", *COMMAND) for _ in range(3)])
    what = f"bytes sent by a second submit of {UNCHANGED:,} files"
    return Figure(what, f"{sent:.1f} kB, {took}", f"on the login node: {there}", "≤ 100 kB", sent <= 100)


def lines(line: Both) -> Figure:
    """How old a line of a rank is when `serried logs -f` shows it."""
    program = "import time\nwhile True:\n    print(time.time(), flush=True)\n    time.sleep(0.3)"
    run = line.output("submit", "--cluster", CLUSTER, *COMMAND[:-1], program)
    argv = [line.here.bin / "serried", "logs", run, "-f"]
    late: list[float] = []
    with subprocess.Popen(argv, env=line.env, cwd=line.here.project, stdout=subprocess.PIPE, text=True) as shown:
        for text in shown.stdout or ():
            with suppress(ValueError):
                late.append(time.time() - float(text))
            if len(late) == LINES:
                break
        shown.terminate()
    line.typed_here("stop", "--yes", run)
    worst = max(late[SKIPPED:])
    figure = f"{statistics.median(late[SKIPPED:]):.2f} s, at most {worst:.2f} s"
    return Figure("age of a line in `serried logs -f`", figure, "", "≤ 0.5 s", worst <= 0.5)


def results(line: Both) -> Figure:
    big = line.here.folder / "home" / "big"
    big.write_bytes(os.urandom(MEGABYTES << 20))
    line.typed_here("submit", "--cluster", CLUSTER, "--wait", *COMMAND[:5], "cp", str(big), "big.bin")
    to = line.here.folder / "fetched"
    scp = ["scp", "-q", "-S", line.far.ssh, *line.control, f"{HOST}:big", line.here.folder / "copied"]
    ours, theirs = line.typed_here("fetch", "last", "--to", str(to)), seconds(scp)
    share = theirs / ours
    what = f"`serried fetch`, {MEGABYTES} MiB that cannot be compressed"
    return Figure(what, f"{ours:.1f} s", f"`scp`: {theirs:.1f} s; {share:.2f} of its speed", "≥ 0.9", share >= 0.9)


def main() -> None:
    with both() as line:
        line.output("login", CLUSTER)
        line.here.run("true")
        figures = [*commands(line)]
        if "--quick" not in sys.argv:
            figures += [lines(line), results(line), unchanged(line)]
        for figure in figures:
            print(figure)
    if "--quick" not in sys.argv:
        record("From a laptop: 40 ms and 20 Mbit/s away", figures)


if __name__ == "__main__":
    main()
