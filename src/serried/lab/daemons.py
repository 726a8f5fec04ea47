"""How each daemon of a lab is started, and how one knows that it answers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from serried.base import files, shell
from serried.base.errors import MissingProgramError
from serried.lab.config import CLUSTER, NO_FILES, Spec, hosts

MARK = "SERRIED_LAB"
"""In the environment of every daemon, and of no job: the lab's directory."""
NODE_MARK = "SERRIED_LAB_NODE"
"""In the environment of a node's slurmd and its slurmstepds: the node's name."""

SLURM = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch", "srun", "squeue")
ASKED_SECONDS = 60
"""For an answer of Slurm's programs on a busy machine; where nobody listens they give up by themselves, after 10."""

ACCOUNTING = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")


_HOSTS = Path("/etc/hosts")


def require(*, accounting: bool) -> None:
    """Raise MissingProgramError unless all that a lab starts is installed."""
    wanted = SLURM + ACCOUNTING if accounting else SLURM
    missing = [name for name in wanted if shell.which(name) is None]
    if missing:
        raise shell.missing_program(*missing)


def slurm_version() -> tuple[int, int]:
    """(22, 5) for `slurm-wlm 22.05.8`."""
    found = re.search(r"(\d+)\.(\d+)", shell.run([_program("slurmd"), "-V"], timeout=ASKED_SECONDS).stdout)
    return (int(found[1]), int(found[2])) if found else (22, 5)


def names(spec: Spec) -> tuple[str, ...]:
    """The lab's daemons in the order in which they start; a node's daemon has the node's name."""
    accounting = ("mariadbd", "slurmdbd") if spec.accounting else ()
    return ("munged", *accounting, "slurmctld", *spec.node_names)


def argv(spec: Spec, name: str) -> list[str]:
    if name in spec.node_names:
        slurmd = [_program("slurmd"), "-D", "-N", name]
        if not spec.own_hosts:
            return slurmd
        # slurmstepd's title overwrites the first variables, and a shell has put the marks anywhere: again last.
        marks = {MARK: spec.directory, NODE_MARK: name}
        last = [word for mark in marks for word in ("-u", mark)] + [f"{mark}={value}" for mark, value in marks.items()]
        return [*_with_hosts(str(spec.hosts_file(name))), "env", *last, *slurmd]
    arguments = {"munged": _munged, "mariadbd": _mariadbd}.get(name, lambda _: ["-D"])
    return [_program(name), *arguments(spec)]


def environment(spec: Spec, name: str = "") -> dict[str, str]:
    """What a daemon is started with. A lab that is started from inside a job is no part of that job."""
    node = {NODE_MARK: name} if name in spec.node_names else {}
    return {
        **outside_slurm(),
        "SLURM_CONF": str(spec.slurm_conf),
        "MYSQL_UNIX_PORT": str(spec.database_socket),
        MARK: str(spec.directory),
        **node,
    }


def outside_slurm() -> dict[str, str]:
    """Our environment without what another Slurm, or a job of it, has put there."""
    foreign = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def prepare(spec: Spec, name: str) -> None:
    if name == "mariadbd":
        command = [
            _program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={spec.directory / 'database'}",
            f"--user={spec.user}",
            "--auth-root-authentication-method=socket",  # no password: the kernel names the user at the other end
            "--skip-test-db",
        ]
        result = shell.run(command, timeout=600)
        (spec.directory / "log/mariadb-install-db.out").write_text(result.stdout + result.stderr, encoding="utf-8")
    elif name == "slurmdbd":
        spec.database_socket.chmod(files.PRIVATE_DIRECTORY)  # MariaDB opens it to all users
    elif name in spec.node_names and spec.own_hosts:
        spec.hosts_file(name).parent.mkdir(exist_ok=True)
        machine = _HOSTS.read_text(encoding="utf-8", errors="replace")
        spec.hosts_file(name).write_text(hosts(spec, name, machine), encoding="utf-8")
    elif name == "slurmctld" and spec.accounting:
        shell.run([_program("sacctmgr"), "-i", "add", "cluster", CLUSTER], env=environment(spec), timeout=ASKED_SECONDS)


def probe(spec: Spec, name: str) -> Callable[[], bool]:
    """A question that is answered yes as soon as the daemon serves."""
    if name in ("munged", "mariadbd"):
        path = spec.munge_socket if name == "munged" else spec.database_socket
        return lambda: _listens(socket.AF_UNIX, str(path))
    if name == "slurmdbd":
        return lambda: _listens(socket.AF_INET, ("127.0.0.1", spec.accounting_port))
    if name == "slurmctld":
        return lambda: " is UP" in _answer(spec, "scontrol", "ping")
    port = spec.first_node_port + spec.node_names.index(name)
    return lambda: _listens(socket.AF_INET, ("127.0.0.1", port)) and _node_is_up(spec, name)


def node_states(spec: Spec) -> dict[str, str]:
    """What Slurm says of each node (`idle`, `mixed`, `down*`); empty while the controller is away."""
    lines = _answer(spec, "sinfo", "--noheader", "--Node", "--format=%N %T", f"--partition={CLUSTER}").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if " " in line)


def registered_nodes(spec: Spec) -> frozenset[str]:
    """The nodes that have spoken to the controller since it started."""
    lines = _answer(spec, "scontrol", "--oneliner", "show", "nodes").splitlines()
    heard = (line for line in lines if " SlurmdStartTime=" in line and "SlurmdStartTime=None" not in line)
    return frozenset(line.split()[0].removeprefix("NodeName=") for line in heard)


def _answer(spec: Spec, program: str, *arguments: str) -> str:
    """The output of one of Slurm's programs; empty if it failed or did not answer."""
    try:
        result = shell.run([_program(program), *arguments], env=environment(spec), timeout=ASKED_SECONDS)
    except shell.TimedOut:
        return ""
    return "" if result.status else result.stdout


def allow_own_hosts() -> bool:
    """Does this machine let its nodes have an /etc/hosts of their own?"""
    try:
        return shell.run([*_with_hosts(str(_HOSTS)), "true"], timeout=ASKED_SECONDS).status == 0
    except (MissingProgramError, shell.TimedOut):
        return False


def _with_hosts(path: str) -> list[str]:
    """What runs a command in a mount namespace where `path` is /etc/hosts.

    An ordinary user may mount as the root of a user namespace, and is himself again in a second one.
    """
    mount = ["--mount", "--propagation", "slave", "sh", "-c", f'mount --bind "$0" {_HOSTS} && exec "$@"', path]
    if os.geteuid() == 0:
        return ["unshare", *mount]
    himself = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
    return ["unshare", "--user", "--map-root-user", *mount, *himself]


def _program(name: str) -> str:
    return shell.which(name) or name


def _munged(spec: Spec) -> list[str]:
    files = {"key": spec.directory / "munge.key", "socket": spec.munge_socket}
    files |= {kind: spec.directory / f"run/munged.{kind}" for kind in ("pid", "seed")}
    logs = [f"--log-file={spec.directory / 'log/munged.log'}"]
    # --force: it dislikes that others may write to /tmp.
    names = {"key": "--key-file", "socket": "--socket", "pid": "--pid-file", "seed": "--seed-file"}
    return ["--foreground", "--force", *logs, *(f"{names[kind]}={path}" for kind, path in files.items())]


def _mariadbd(spec: Spec) -> list[str]:
    return [
        "--no-defaults",
        "--skip-networking",
        f"--datadir={spec.directory / 'database'}",
        f"--socket={spec.database_socket}",
        f"--pid-file={spec.directory / 'run/mariadbd.pid'}",
        f"--user={spec.user}",
        f"--secure-file-priv={spec.directory / NO_FILES}",
        "--local-infile=0",
        # It is thrown away: durability only costs time.
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=32M",
        "--innodb-lock-wait-timeout=900",
    ]


def _listens(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as connection:
        connection.settimeout(1)
        return connection.connect_ex(address) == 0


def _node_is_up(spec: Spec, name: str) -> bool:
    state = node_states(spec).get(name, "")
    return bool(state) and not state.endswith("*") and not state.startswith(("down", "unknown"))
