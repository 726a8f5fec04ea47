"""What a lab is, and the text of its configuration files. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CLUSTER = "lab"
MAX_NODES = 60
MAX_CPUS = 4096
CPUS = 16
MEMORY_MB = 64 << 10
TASK_PROLOG = "task-prolog.sh"
NO_FILES = "no-files"
"""The empty folder to which the database's statements about files are confined."""


@dataclass(frozen=True)
class Spec:
    """Everything that a lab's files and daemons depend on."""

    name: str
    directory: Path
    user: str
    """Who owns daemons and jobs, and alone may submit."""
    hostname: str
    """This machine's short host name: Slurm's daemons look for themselves by it."""
    port: int
    """The first of the lab's ports: controller, accounting, then one for each node."""
    slurm_version: tuple[int, int] = (22, 5)
    nodes: int = 4
    gpus: int = 4
    """Per node. No process ever opens them: they exist to be counted and handed out."""
    gpu_type: str = ""
    """Empty for untyped GPUs, as `--gres=gpu:2` asks for them."""
    gpu_devices: tuple[str, ...] = ()
    """Slurm takes nothing but character devices for GPUs."""
    accounting: bool = False
    cpus: int = CPUS
    """Per node: more than this machine may have, so that a cluster's requests fit."""
    memory_mb: int = MEMORY_MB
    features: tuple[str, ...] = ()
    """What `--constraint` may ask of the nodes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More lines of slurm.conf, or other values for ours."""
    partitions: tuple[str, ...] = ()
    """Further partitions, each what follows `PartitionName=`: `short MaxTime=10`."""
    own_hosts: bool = False
    """Each node has an /etc/hosts of its own, so that jobs can look up the names of nodes."""

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.directory / "munge.socket"

    @property
    def database_socket(self) -> Path:
        return self.directory / "database/socket"

    @property
    def accounting_port(self) -> int:
        return self.port + 1

    @property
    def first_node_port(self) -> int:
        return self.port + 2

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    def hosts_file(self, node: str) -> Path:
        return self.directory / f"hosts/{node}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Spec:
        known = dict(value)
        known["directory"] = Path(known["directory"])
        for key in ("slurm_version", "gpu_devices", "features", "partitions"):
            known[key] = tuple(known[key])
        return cls(**known)


def files(spec: Spec) -> dict[str, str]:
    """Every configuration file of the lab: name -> text."""
    texts = {"slurm.conf": slurm_conf(spec), "cgroup.conf": cgroup_conf(spec), TASK_PROLOG: task_prolog()}
    if spec.gpus:
        texts["gres.conf"] = gres_conf(spec)
    if spec.accounting:
        texts["slurmdbd.conf"] = slurmdbd_conf(spec)
    return texts


def slurm_conf(spec: Spec) -> str:
    log, run = spec.directory / "log", spec.directory / "run"
    settings: dict[str, object] = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{spec.hostname}(127.0.0.1)",
        "SlurmctldPort": spec.port,
        "SlurmUser": spec.user,
        "SlurmdUser": spec.user,
        "AuthType": "auth/munge",
        # A requeued job waits for as long as a credential lives: 121 s by default.
        "AuthInfo": f"socket={spec.munge_socket},cred_expire=10",
        "CredType": "cred/munge",
        "StateSaveLocation": spec.directory / "state",
        "SlurmdSpoolDir": spec.directory / "spool/%n",
        "SlurmctldPidFile": run / "slurmctld.pid",
        "SlurmdPidFile": run / "%n.pid",
        "SlurmctldLogFile": log / "slurmctld.log",
        "SlurmdLogFile": log / "%n.log",
        "SlurmctldSyslogDebug": "quiet",
        "SlurmdSyslogDebug": "quiet",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "KillWait": 5,
        "SlurmdTimeout": 20,
        "InactiveLimit": 0,
        # No cgroups: they would need root, and a hierarchy that nobody else minds.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "TaskProlog": spec.directory / TASK_PROLOG,
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "DefMemPerCPU": 1024,
        # A node may claim more CPUs and memory than this machine has.
        "SlurmdParameters": "config_overrides",
        **({"GresTypes": "gpu"} if spec.gpus else {}),
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=1",
        "AccountingStorageType": f"accounting_storage/{'slurmdbd' if spec.accounting else 'none'}",
    }
    if spec.accounting:
        settings["AccountingStorageHost"] = "127.0.0.1"
        settings["AccountingStoragePort"] = spec.accounting_port
        # The munge socket: without it slurmctld asks the system's munged, whose key slurmdbd refuses.
        settings["AccountingStoragePass"] = spec.munge_socket
        settings |= {"AccountingStorageTRES": "gres/gpu"} if spec.gpus else {}
    lines = [f"{key}={value}" for key, value in {**settings, **spec.settings}.items()]
    lines.append(_node_line(spec))
    lines.append(f"PartitionName={CLUSTER} Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    for partition in spec.partitions:
        nodes = "" if re.search(r"\bnodes=", partition, re.IGNORECASE) else " Nodes=ALL"
        lines.append(f"PartitionName={partition}{nodes}")
    return "\n".join(lines) + "\n"


def gres_conf(spec: Spec) -> str:
    kind = f" Type={spec.gpu_type}" if spec.gpu_type else ""
    return "".join(f"Name=gpu{kind} File={device}\n" for device in spec.gpu_devices)


def cgroup_conf(spec: Spec) -> str:
    """Keep slurmd's hands off cgroups: it readies them at start even if nothing of ours asks for them.

    The v2 plugin wants systemd, D-Bus and delegated controllers, or it ends slurmd; v1 does nothing until
    it is asked. `disabled` came with Slurm 23.02.
    """
    return f"CgroupPlugin={'disabled' if spec.slurm_version >= (23, 2) else 'cgroup/v1'}\n"


def task_prolog() -> str:
    """What Slurm runs before each task; the lines that it prints become the task's environment.

    Open MPI's ranks share memory by the names of their host and job, and all nodes here have the same name: ranks on
    two of them would write into each other's.
    """
    return '#!/bin/sh\n[ -n "$OMPI_MCA_btl" ] || echo export OMPI_MCA_btl=tcp,self\n'


def hosts(spec: Spec, node: str, machine: str) -> str:
    """The /etc/hosts of a node, from that of this `machine`.

    Each node has a loopback address of its own. On the node, the name of this machine leads to it too: so programs that
    compare addresses, such as torchrun and mpirun, tell the nodes apart.
    """
    lines = [f"127.1.0.{number} {name}" for number, name in enumerate(spec.node_names, 1)]
    lines[spec.node_names.index(node)] += f" {spec.hostname}"
    return "\n".join([*lines, machine])


def slurmdbd_conf(spec: Spec) -> str:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={spec.munge_socket}",
        "DbdHost": spec.hostname,
        "DbdAddr": "127.0.0.1",
        "DbdPort": spec.accounting_port,
        "SlurmUser": spec.user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": spec.user,
        "StorageLoc": "slurm_acct_db",
        "LogFile": spec.directory / "log/slurmdbd.log",
        "PidFile": spec.directory / "run/slurmdbd.pid",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _node_line(spec: Spec) -> str:
    last = spec.first_node_port + spec.nodes - 1
    words = [
        f"NodeName=n[1-{spec.nodes}]",
        f"NodeHostname={spec.hostname}",
        "NodeAddr=127.0.0.1",
        f"Port=[{spec.first_node_port}-{last}]",
        f"CPUs={spec.cpus}",
        f"RealMemory={spec.memory_mb}",
    ]
    if spec.gpus:
        kind = f"{spec.gpu_type}:" if spec.gpu_type else ""
        words.append(f"Gres=gpu:{kind}{spec.gpus}")
    if spec.features:
        words.append(f"Feature={','.join(spec.features)}")
    return " ".join([*words, "State=UNKNOWN"])
