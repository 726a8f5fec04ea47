"""A real sshd on the loopback: a login node with a host name, processes, a user, a home and passcodes of its own.

It lives in namespaces, so its user `ada` may have any home and any shell while this machine stays as it is. All its
processes end with the test, even if that is killed.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import shutil
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from waiting import until

PASSWORD = "correct horse"
CODES = ("755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871", "520489")
"""Passcodes of ada's device in their order (RFC 4226, appendix D). Each opens one connection."""
SECOND_FACTOR = {"AuthenticationMethods": "keyboard-interactive:pam"}
"""Password and passcode for each connection, no keys."""
KEY_AND_CODE = {"AuthenticationMethods": "publickey,keyboard-interactive:pam", "passcode_alone": True}

_HASH = "$6$serried$vGDr4TOz6xrAdyAxagT38Iiy7ifIRRLqRS13sScCz/f0JqtVACBHU3pdr9rRDb1xkyYRUJyqmvqo05IGqwiHz1"
_PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "unshare": "util-linux"}


def skip_unless_possible() -> None:
    """Skip the test where there is no sshd, or no root to start it; in CI that is a failure."""
    missing = [package for program, package in _PACKAGES.items() if not shutil.which(program)]
    reason = f"needs sshd: apt-get install {' '.join(missing)}" if missing else "an sshd of the tests needs root"
    if missing or os.getuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


class Sshd:
    """One login node. `host` is its alias in `ssh_config`, which the program `ssh` reads.

    `options` are those of sshd_config(5). `home` and `ssh_config` may be those of another Sshd: two login nodes of one
    cluster, or two clusters of one user.
    """

    def __init__(
        self,
        folder: Path,
        host: str = "fir",
        *,
        home: Path | None = None,
        shell: str = "/bin/bash",
        ssh_config: Path | None = None,
        **options: object,
    ):
        skip_unless_possible()
        self.folder, self.host = folder / f"sshd-{host}", host
        self.home = home or self.folder / "home"
        self.ssh_config = ssh_config or folder / "ssh_config"
        self.ssh = self.ssh_config.with_name("ssh")
        self.port = _free_port()
        for each in (self.folder, self.home, self.home / ".ssh"):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write_user(shell)
        self.key = self.ssh_config.with_name("id_ed25519")
        for key in (self.folder / "host_key", self.key):
            if not key.exists():
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        shutil.copy(self.key.with_suffix(".pub"), self.home / ".ssh" / "authorized_keys")
        self._write_client()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "node.log").open("ab") as log:
            self._node = subprocess.Popen(
                ["unshare", "-m", "-p", "-u", "-f", "--mount-proc", "--kill-child", "/bin/bash"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
                cwd="/",
            )
        self.inside(f"hostname {host}-login1")
        for name in ("passwd", "shadow"):
            self.inside(f"mount --bind {shlex.quote(str(self.folder / name))} /etc/{name}")
        self.inside(f"mount --bind {shlex.quote(str(self.folder / 'pam'))} /etc/pam.d/sshd")
        self.config(**options)

    def inside(self, command: str) -> None:
        """Have a command run on the login node, as root, without waiting for it. Its output is in node.log."""
        self._node.stdin.write(f"{{ {command}\n}} </dev/null\n".encode())
        self._node.stdin.flush()

    def answer(self, command: str) -> str:
        """What a command on the login node prints, as root."""
        output = self.folder / f"answer-{time.monotonic_ns()}"
        part = shlex.quote(f"{output}.part")
        self.inside(f"{{ {command}\n}} >{part} 2>&1; mv {part} {shlex.quote(str(output))}")
        until(output.exists, what=command)
        return output.read_text()

    def mount(self, folder: Path, options: str) -> None:
        """Give a folder of the login node a file system of its own, with limits."""
        folder.mkdir(parents=True, exist_ok=True)
        assert self.answer(f"mount -t tmpfs -o {options},mode=0700 none {shlex.quote(str(folder))}") == ""

    def config(self, *, passcode_alone: bool = False, **options: object) -> None:
        """Start sshd, or another in its place with other options. Connections of the old one live on."""
        self.stop()
        self._write_pam(passcode_alone)
        pid = self.folder / "pid"
        defaults = {"PasswordAuthentication": "no", "Subsystem": "sftp internal-sftp"}
        fixed = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": f'"{self.folder}/host_key"',
            "PidFile": f'"{pid}"',
            "PermitRootLogin": "yes",  # ada has the user id of root: the files of a test belong to root
            "UsePAM": "yes",
            "LogLevel": "VERBOSE",
            "PerSourcePenalties": None,
        }
        lines = [f"{name} {value}\n" for name, value in {**defaults, **options, **fixed}.items() if value is not None]
        (self.folder / "sshd_config").write_text("".join(lines))
        log = shlex.quote(str(self.folder / "sshd.log"))
        program = shutil.which("sshd")
        self.inside(f"{program} -f {shlex.quote(str(self.folder / 'sshd_config'))} -E {log} || touch {log}.failed")
        failed = self.folder / "sshd.log.failed"
        until(lambda: pid.exists() or failed.exists(), what="sshd listens")
        assert not failed.exists(), self.log

    def stop(self) -> None:
        """Refuse further connections. Those that are open live on."""
        pid = self.folder / "pid"
        if pid.exists():
            self.inside(f"kill $(cat {shlex.quote(str(pid))})")
            until(lambda: not pid.exists(), what="sshd has ended")

    def cut(self) -> None:
        """Lose all connections at once, without a word."""
        self._signal_connections("KILL")

    def freeze(self) -> None:
        """No connection answers from now on, as after a change of network."""
        self._signal_connections("STOP")

    def thaw(self) -> None:
        self._signal_connections("CONT")

    def _signal_connections(self, name: str) -> None:
        done = self.folder / f"signalled-{time.monotonic_ns()}"
        # By their titles, in the processes of this node alone.
        self.inside(f"pkill -{name} -f '^sshd: ([^/]|$)' ; touch {shlex.quote(str(done))}")
        until(done.exists)

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    @property
    def connections(self) -> int:
        """How many connections there have been, whatever became of them."""
        return self.log.count("\nConnection from ") + self.log.startswith("Connection from ")

    @property
    def logins(self) -> int:
        return self.log.count("\nAccepted ")

    def renew_host_key(self) -> None:
        """As after a reinstallation; `config` makes sshd use it."""
        for path in self.folder.glob("host_key*"):
            path.unlink()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host_key"], check=True)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._node.stdin.close()
        self._node.kill()
        self._node.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_user(self, shell: str) -> None:
        others = Path("/etc/passwd").read_text()
        (self.folder / "passwd").write_text(f"ada:x:0:0:Ada:{self.home}:{shell}\n{others}")
        (self.folder / "shadow").write_text(f"ada:{_HASH}:20000:0:99999:7:::\n")
        (self.folder / "shadow").chmod(0o600)
        (self.folder / "codes").write_text("HOTP ada - 3132333435363738393031323334353637383930\n")
        (self.folder / "codes").chmod(0o600)

    def expire_password(self) -> None:
        (self.folder / "shadow").write_text(f"ada:{_HASH}:0:0:99999:7:::\n")

    def _write_pam(self, passcode_alone: bool) -> None:
        code = f"auth required pam_oath.so [usersfile={self.folder}/codes] window=20 digits=6"
        lines = [code] if passcode_alone else ["auth required pam_unix.so", code]
        lines += ["account required pam_unix.so", "password required pam_unix.so", "session required pam_permit.so"]
        (self.folder / "pam").write_text("\n".join(lines) + "\n")

    def _write_client(self) -> None:
        public = (self.folder / "host_key.pub").read_text()
        known = self.ssh_config.with_name("known_hosts")
        with known.open("a") as file:
            file.write(f"[127.0.0.1]:{self.port} {public}")
        with self.ssh_config.open("a") as file:
            file.write(
                f"Host {self.host}\n  HostName 127.0.0.1\n  Port {self.port}\n  User ada\n  IdentitiesOnly yes\n"
                f'  IdentityFile "{self.key}"\n  UserKnownHostsFile "{known}"\n  GlobalKnownHostsFile /dev/null\n'
            )
        if not self.ssh.exists():
            self.ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(self.ssh_config))} "$@"\n')
            self.ssh.chmod(0o755)


def at_terminal(argv: Sequence[object], *answers: tuple[str, str], columns: int = 80) -> tuple[int, str]:
    """Run a command on a terminal, answering its prompts in their order. Returns its status and all that appeared."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(str(argv[0]), [str(word) for word in argv])
    termios.tcsetwinsize(terminal, (24, columns))
    shown, left = "", list(answers)
    try:
        while True:
            assert select.select([terminal], [], [], 120)[0], shown
            with contextlib.suppress(OSError):  # EIO: the last process has closed the terminal
                if data := os.read(terminal, 1 << 16):
                    shown += data.decode(errors="replace")
                    if left and left[0][0] in shown.rpartition("\r\n")[2]:
                        os.write(terminal, f"{left.pop(0)[1]}\n".encode())
                    continue
            break
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(terminal)
    assert left == [], shown
    return status, shown.replace("\r", "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
