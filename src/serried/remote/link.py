"""The connection to a cluster's login node, by the user's own OpenSSH.

ssh decides how to get there and how to log in: aliases, jump hosts, keys, agents and host keys are as in ~/.ssh/config.
Only `sign_in` may prompt. One connection, a master, serves all commands; where ssh cannot keep one, each command is a
connection (`once`). Where only one session is allowed, a process on this machine holds it (`session`, see `holder`).

A centre bans an address that connects too often, so connections have a budget, counted over all processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import re
import secrets
import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from serried.base import NamedTuple, files, locks, processes, shell
from serried.base.errors import NotConnected, UsageError
from serried.base.text import show_duration
from serried.records import index
from serried.views import console

MASTER, SESSION, ONCE = "master", "session", "once"
KEEP_SECONDS = 3600
"""How long an unused connection stays open. Pages of centres recommend 5 minutes to 12 hours."""
ANSWER_SECONDS = 5
"""A living connection answers within these."""
ENDING_SECONDS = 0.5
"""ssh takes less to end after its last output."""
LOGIN_SECONDS = 30
"""A login without prompts takes less, with jump hosts too."""
PAUSE_SECONDS, WINDOW_SECONDS, MOST_OPENED, MOST_REFUSED = 15, 600, 6, 2
"""The budget: the least time between two connections; how many in the window, and how many refused logins."""
LONGEST_SOCKET = 87
"""Bytes of a socket's path on every system, less the 17 that ssh adds while it binds."""

SSH_FAILED = 255
"""The status of ssh if it fails itself. A command may have the same one."""

SESSION_GREETING = "serried-session"
"""The line before the version with which a session greets."""

now, sleep = time.time, time.sleep
"""The clock of the budget."""

_PLAIN = ("-T", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none")
"""What commands need whatever the user's configuration says: no terminal, no second claim on forwarded ports."""
_BATCH = ("-o", "BatchMode=yes")
_NO_CONNECTION = ("-o", "ControlMaster=no", *_BATCH, "-o", "ProxyCommand=false", "-o", "ProxyJump=none")
"""Without a living master ssh must fail at once: it would make a connection of its own."""

_TEXTS = (
    ("host-key-changed", "HOST IDENTIFICATION HAS CHANGED", "the host key of `{host}` has changed"),
    ("host-key-unknown", "Host key verification failed", "the host key of `{host}` is not known yet"),
    ("one-session", "session request failed", "`{host}` allows no further session on this connection"),
    ("password-expired", "password has expired|Password change required", "your password on `{host}` has expired"),
    ("login-refused", r"Permission denied \(|Too many authentication failures", "`{host}` refused the login"),
    ("no-master", "unix_listener|ControlPath too long", "ssh cannot share its connection to `{host}`"),
    ("host-unknown", "Could not resolve hostname", "ssh does not find the host `{host}`"),
    ("unreachable", "Connection refused", "`{host}` accepts no ssh connections"),
    ("unreachable", "timed out|No route to host|Network is unreachable", "`{host}` does not answer"),
    ("closed", "Connection (closed|reset) by|kex_exchange_identification", "`{host}` closed the connection"),
    ("ssh-configuration", "[Bb]ad configuration option|Bad owner or permissions", "ssh rejects its configuration"),
)
"""How OpenSSH says why it failed: its exit status is 255 for all. These texts are not translated."""

_HINTS = {
    "host-key-changed": "compare the new key with the fingerprints that the site publishes, then remove the old one",
    "host-key-unknown": "serried login {cluster} shows its fingerprint and asks",
    "no-master": "check ControlPath of `{host}` in ~/.ssh/config",
    "one-session": "serried login {cluster}",
    "password-expired": "ssh {host} asks for a new one",
    "host-unknown": "check `login` in the profile of `{cluster}` and the aliases in ~/.ssh/config",
    "unreachable": "check the network, and the site's VPN: ssh {host}",
    "closed": "too many connections? wait ten minutes, then try: ssh {host}",
}


class Login(NamedTuple):
    """How commands reach a cluster, as `serried login` found out. Kept in login.json."""

    host: str
    mode: str
    """`master`, `session` or `once`; empty if there was no login yet."""
    is_batch: bool
    """Whether ssh logs in without a prompt, as with keys."""
    control: str
    """ControlPath for ssh; empty if the user's own configuration has one."""
    node: str
    """The login node that answered: a name may stand for several."""
    why: str
    """The reason for the mode, a sentence."""
    keep_seconds: int
    when: float
    answer_seconds: float = 0.0
    """How long a command took to answer at login: the startup files of a shell may load modules first."""

    @property
    def patience_seconds(self) -> float:
        """A connection that has not answered for so long is dead."""
        return LOGIN_SECONDS if self.mode == ONCE else max(ANSWER_SECONDS, 4 * self.answer_seconds)


class Link:
    """A command on the login node. `stdin` and `stdout` are its own, binary and unbuffered. End it by `kill`."""

    def __init__(
        self,
        login: Login,
        cluster: str,
        pipes: tuple[BinaryIO, BinaryIO],
        errors: IO[bytes],
        process: shell.Child | None = None,
    ) -> None:
        """Without a `process` of ssh, it is a place in the session that another process holds."""
        self.login, self.cluster = login, cluster
        self.stdin, self.stdout = pipes
        self.patience_seconds = login.patience_seconds
        self.version = ""
        """The version of Serried at the other end, where that runs already."""
        self._process, self._errors, self._text = process, errors, ""

    def kill(self) -> None:
        """End ssh here. The command over there meets the end of its input."""
        if self._process:
            self._process.kill()
            self._process.wait()
        self.diagnosis()
        for file in (self.stdin, self.stdout, self._errors):
            with contextlib.suppress(OSError):
                file.close()

    def diagnosis(self) -> str:
        """The last lines that ssh and the far side have written to stderr."""
        if not self._errors.closed:
            self._errors.seek(0)
            self._text = self._errors.read().decode("utf-8", "replace")
        return _tail(self._text)

    def explain(self, *, is_batch: bool = True) -> NotConnected:
        self.diagnosis()
        return _explain(self.cluster, self.login.host, self._text, is_batch=is_batch)

    def lost(self) -> NotConnected:
        """The error for a command that has not answered in time, or has ended before. Ends the link."""
        has_ended = self._process is not None and shell.has_ended(self._process, ENDING_SECONDS)
        return self.failure() if has_ended else self.dead()

    def failure(self) -> NotConnected:
        """The error for output that ended before the command answered. Ends the link."""
        if self._process is None:
            self.kill()
            return NotConnected(f"the session on `{self.login.host}` has ended", hint=f"serried login {self.cluster}")
        shell.has_ended(self._process, ANSWER_SECONDS)
        self.kill()
        error = self.explain()
        if self.login.mode == MASTER and self._process.returncode == SSH_FAILED and error.code != "one-session":
            return not_connected(self.cluster, self.login.host)
        return error

    def dead(self) -> NotConnected:
        """The error for a connection that did not answer in time. Ends the link, and our own connection with it."""
        self.kill()
        host, hint = self.login.host, f"serried login {self.cluster}"
        if self.login.control:
            _close(self.login)
        elif self.login.mode == MASTER:
            hint = f"ssh -O exit {host}, then {hint}"  # others may use the user's own connection
        return NotConnected(f"the connection to `{host}` is dead", hint=hint, code="dead")

    def answer(self, marker: str, seconds: float = math.inf) -> str | None:
        """The line after the line `marker`; None if the output ends, or if it is not there in time."""
        lines, deadline = b"", time.monotonic() + seconds
        while True:
            _, found, rest = lines.partition(f"{marker}\n".encode())
            if found and b"\n" in rest:
                return rest.partition(b"\n")[0].decode("utf-8", "replace").strip()
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.stdout], [], [], None if left == math.inf else left)[0]:
                return None
            more = os.read(self.stdout.fileno(), 1 << 16)
            if not more:
                return None
            lines = (lines + more)[-(1 << 20) :]


def connect(cluster: str, host: str, command: str) -> Link:
    """Start `command`, a line for the far login shell, over a connection that exists or needs no prompt.

    Raises:
        NotConnected: there was no `serried login` yet, only that can connect, or the login node cannot be reached.
    """
    login = last_login(host)
    if login and login.mode == SESSION:
        return _borrow(cluster, login)
    login, options = _way(cluster, host)
    return _start(cluster, login, options, command)


def on_terminal(cluster: str, host: str, command: str) -> tuple[str, ...]:
    """The ssh command that runs `command` over there on this terminal. Raises NotConnected."""
    login, options = _way(cluster, host)
    if login.mode == SESSION:
        message = f"`{host}` allows one session, which all commands share, and no further terminal"
        raise NotConnected(message, hint=f"ssh {host}, then the command there", code="one-session")
    return (_program(), *_PLAIN[1:], *options, "-o", "LogLevel=QUIET", "-tt", login.host, command)


def _way(cluster: str, host: str) -> tuple[Login, tuple[str, ...]]:
    """How commands reach the cluster now, and ssh's options for that."""
    login = last_login(host)
    if login is None:
        raise not_connected(cluster, host)
    if login.mode == ONCE:
        _admit(cluster, host)
        return login, ("-o", "ControlPath=none", *_BATCH)
    if not _is_open(login):
        if not login.is_batch:
            raise not_connected(cluster, host)
        login = sign_in(cluster, host, keep_seconds=login.keep_seconds, may_prompt=False)
    return login, (*_path(login), *_NO_CONNECTION)


def over_master(cluster: str, host: str, command: str) -> Link:
    """As `connect`, over a master that runs: for the process that holds the one session."""
    login = last_login(host)
    if login is None or not _is_open(login):
        raise not_connected(cluster, host)
    return _start(cluster, login, (*_path(login), *_NO_CONNECTION), command)


def session_socket(host: str) -> Path:
    """The socket of the process that holds the only session on a host."""
    name = hashlib.sha256(os.fsencode(_folder(host))).hexdigest()[:16]
    return _socket_folder() / f"{name}.session"


def _borrow(cluster: str, login: Login) -> Link:
    """A place in the one session, which a process on this machine holds. Starts that process if there is none."""
    if not _is_open(login):
        if not login.is_batch:
            raise not_connected(cluster, login.host)
        login = sign_in(cluster, login.host, keep_seconds=login.keep_seconds, may_prompt=False)
    path, connection = session_socket(login.host), socket.socket(socket.AF_UNIX)
    with _locked(login.host, "session.log") as log:
        if connection.connect_ex(str(path)) != 0:
            log.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            holder = shell.spawn(
                (sys.executable, "-m", "serried.remote.holder", cluster, login.host), log=log, cwd=path.parent
            )
            with console.status_line(f"opening the session on {login.host}"):
                while connection.connect_ex(str(path)) != 0:
                    sleep(0.1)
                    if processes.identify(holder) is None:
                        connection.close()
                        words = _tail(log.read_text(encoding="utf-8", errors="replace"))
                        message = f"cannot open the session on `{login.host}`"
                        raise NotConnected(message, hint=f"serried login {cluster}", details=words or None)
    pipes = connection.makefile("rwb", buffering=0)
    connection.close()
    link = Link(login, cluster, (pipes, pipes), io.BytesIO())  # type: ignore[arg-type]
    link.version = link.answer(SESSION_GREETING, ANSWER_SECONDS + 1) or ""
    if not link.version:
        raise link.dead()
    return link


def sign_in(cluster: str, host: str, *, keep_seconds: int = KEEP_SECONDS, may_prompt: bool = True) -> Login:
    """Connect, find out how commands reach the cluster, and remember that.

    With `may_prompt`, ssh asks on the terminal for what it needs, and the budget does not hold it up.

    Raises NotConnected.
    """
    files.make_directory(index.folder_of(cluster))  # `ps` then includes the cluster
    with _locked(host, "login.json"):  # other commands then use this connection
        before = last_login(host)
        login = _new_login(host, keep_seconds, before)
        if before and before.mode == SESSION:
            _close(login)  # its session would be in the way
        node = _node_of(cluster, before or login) if _is_open(login) else None
        if node is None:
            _close(login)
            known = before is not None and not before.is_batch and now() - before.when < 24 * 3600
            if may_prompt and known:
                node = _open(cluster, login, may_prompt=True)
            else:
                try:
                    node = _open(cluster, login, may_prompt=False)
                    login = login._replace(is_batch=True)
                except NotConnected as error:
                    if error.code == "no-master":  # after the login
                        why = "ssh cannot share a connection here, and logs in without a prompt"
                        login = login._replace(mode=ONCE, is_batch=True, why=why)
                        _remember(login)
                        return login
                    if error.code == "login-refused":
                        _remember(login)
                    if not may_prompt or error.code not in ("login-refused", "host-key-unknown"):
                        raise
                    node = _open(cluster, login, may_prompt=True)
        began = time.monotonic()
        mode, why = _probe(cluster, login)
        login = login._replace(mode=mode, why=why, node=node, answer_seconds=round(time.monotonic() - began, 1))
        _remember(login)
    return login


def sign_out(host: str) -> bool:
    """Close our own connection; whether there was one. One of the user's own configuration stays."""
    login = last_login(host)
    return login is not None and bool(login.control) and _close(login)


def check(cluster: str, host: str) -> Login:
    """The login that commands use now, after one has answered. Raises NotConnected; never prompts."""
    marker, command = _hello()
    link = connect(cluster, host, command)
    if link.version:
        link.kill()
        return link.login
    try:
        node = link.answer(marker, link.login.patience_seconds if link.login.mode == MASTER else LOGIN_SECONDS)
        if node is None:
            raise link.lost()
    finally:
        link.kill()
    return link.login._replace(node=node)


def is_open(host: str) -> bool:
    """Whether a connection is open as far as this machine knows, which does not ask the network."""
    login = last_login(host)
    return login is not None and login.mode != ONCE and _is_open(login)


def last_login(host: str) -> Login | None:
    """The result of the last login to this host, for all clusters that use it."""
    document = files.read_json(_folder(host) / "login.json") or {}
    try:
        return Login(**document)
    except TypeError:  # of another version
        return None


def not_connected(cluster: str, host: str) -> NotConnected:
    return NotConnected(f"not connected to `{host}`", hint=f"serried login {cluster}", code="none")


def _program() -> str:
    return os.environ.get("SERRIED_SSH") or "ssh"


def _ssh(*words: str, timeout: float = ANSWER_SECONDS) -> shell.Result:
    """Run ssh for something on this machine. With our own locale: users' configurations send LC_* to the far side."""
    return shell.run((_program(), *words), timeout=timeout, env=os.environ)


def _folder(host: str) -> Path:
    """Where this machine stores facts about the connection to a host. Raises UsageError for an invalid host."""
    if not host or host.startswith(("-", ".")) or not host.isprintable() or any(map(str.isspace, host)):
        raise UsageError(
            f"`{host}` is not a host", hint="`login` in the profile is a host or an alias of ~/.ssh/config"
        )
    return index.folder_of() / ".hosts" / re.sub(r"[^\w@.-]", lambda match: f"%{ord(match[0]):x}", host)


def _remember(login: Login) -> None:
    files.make_directory(_folder(login.host))
    files.write_json(_folder(login.host) / "login.json", login._asdict())


@contextlib.contextmanager
def _locked(host: str, name: str) -> Iterator[Path]:
    """Lock a file about the host, so that no other process reads or writes it meanwhile."""
    files.make_directory(_folder(host))
    held = locks.hold(_folder(host) / name, locks.ALONE)
    try:
        yield _folder(host) / name
    finally:
        os.close(held)


def _new_login(host: str, keep_seconds: int, before: Login | None) -> Login:
    result = _ssh("-G", host)
    if result.status != 0:
        raise _explain("", host, result.stderr, is_batch=True)
    settings = dict(line.partition(" ")[::2] for line in result.stdout.splitlines())
    own = "" if settings.get("controlpath", "none") != "none" else f"{_socket_folder()}/%C"
    is_batch = before is not None and before.is_batch
    return Login(host, "", is_batch, own, "", "", keep_seconds, now())


def _socket_folder() -> Path:
    """A private folder on this machine's own disk, whose path is short and plain enough for ssh."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    is_fit = re.fullmatch(r"/[\w./-]+", str(runtime), re.ASCII) and len(f"{runtime}/serried/") + 40 <= LONGEST_SOCKET
    if is_fit and files.is_ours_alone(runtime):
        return files.make_ours_alone(runtime / "serried")
    folder = Path(f"/tmp/serried-{os.getuid()}")  # noqa: S108 - checked to be ours alone
    try:
        return files.make_ours_alone(folder)
    except OSError as error:
        raise NotConnected(f"`{folder}` is not a private folder of yours", hint=f"remove or rename {folder}") from error


def _path(login: Login) -> tuple[str, ...]:
    return ("-o", f"ControlPath={login.control}") if login.control else ()


def _is_open(login: Login) -> bool:
    """Whether a master runs on this machine, which says nothing about the network."""
    try:
        return _ssh(*_path(login), "-O", "check", login.host).status == 0
    except shell.TimedOut:
        return False


def _close(login: Login) -> bool:
    """End our own master and remove its socket; whether one ran."""
    if not login.control:
        return False
    with contextlib.suppress(shell.TimedOut):
        if _ssh(*_path(login), "-O", "exit", login.host).status == 0:
            return True
    settings = _ssh(*_path(login), "-G", login.host).stdout
    for path in re.findall(r"(?m)^controlpath (.*)$", settings):
        Path(path).unlink(missing_ok=True)
    return False


def _start(cluster: str, login: Login, options: Sequence[str], command: str) -> Link:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the link
    argv = (_program(), *_PLAIN, *options, login.host, command)
    return _link(login, cluster, shell.converse(argv, stderr=errors, own_session=True), errors)


def _link(login: Login, cluster: str, process: shell.Child, errors: IO[bytes]) -> Link:
    if process.stdin is None or process.stdout is None:
        raise TypeError("ssh has no pipes")
    return Link(login, cluster, (process.stdin, process.stdout), errors, process)  # type: ignore[arg-type]


def _hello() -> tuple[str, str]:
    """A marker, and a command for any shell that prints it and then the name of the node."""
    marker = f"serried-{secrets.token_hex(8)}"
    return marker, f"echo {marker}; uname -n"


def _open(cluster: str, login: Login, *, may_prompt: bool) -> str:
    """Log in, and leave a master behind if ssh can. Returns the name of the login node."""
    _admit(cluster, login.host, by_hand=may_prompt)
    settings = dict(line.partition(" ")[::2] for line in _ssh("-G", login.host).stdout.splitlines())
    options = [*_path(login), "-o", "ControlMaster=auto"]
    if login.control or settings.get("controlpersist") == "no":
        options += ["-o", f"ControlPersist={login.keep_seconds}"]
    if settings.get("serveraliveinterval") == "0":
        options += ["-o", "ServerAliveInterval=60", "-o", "ServerAliveCountMax=3"]
    marker, command = _hello()
    with tempfile.NamedTemporaryFile() as log:
        # Banners and prompts appear on the terminal; the messages of ssh itself are quoted below our error.
        told = ("-E", log.name) if may_prompt else _BATCH
        argv = (_program(), *_PLAIN, *options, *told, login.host, command)
        process = shell.converse(argv, stderr=None if may_prompt else log, own_session=not may_prompt)
        link = _link(login, cluster, process, log)
        try:
            link.stdin.close()
            node = link.answer(marker, math.inf if may_prompt else LOGIN_SECONDS)
            shell.has_ended(process, LOGIN_SECONDS if node else 1)
        finally:
            link.kill()
    error = link.explain(is_batch=not may_prompt)
    with _locked(login.host, "connections") as path:
        _write_event(path, "accepted" if node else "refused" if error.code == "login-refused" else "failed")
    if node is None:
        raise error
    return node


def _probe(cluster: str, login: Login) -> tuple[str, str]:
    """The mode for a login that has just succeeded, and the reason, by two sessions at once."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(2):
            marker, command = _hello()
            link = _start(cluster, login, (*_path(login), *_NO_CONNECTION), f"{command}; cat")
            stack.callback(link.kill)
            nodes.append(link.answer(marker, LOGIN_SECONDS))
            if nodes[-1] is None and len(nodes) == 1:
                return _probed_alone(link, login)
    if None in nodes:
        return SESSION, f"`{login.host}` allows one session for each connection"
    return MASTER, f"`{login.host}` allows several sessions on one connection"


def _probed_alone(link: Link, login: Login) -> tuple[str, str]:
    """The same for a connection that refuses a second session even after the first ended. Raises NotConnected."""
    error = link.lost()
    if error.code != "one-session":
        raise error
    _close(login)
    why = f"`{login.host}` allows one session for each connection, and no other after it"
    if not login.is_batch:
        raise NotConnected(why, hint=f"commands need a key that logs in without a prompt: ssh {login.host}")
    return ONCE, why


def _node_of(cluster: str, login: Login) -> str | None:
    """The login node at the other end of a master; None if the connection is dead."""
    marker, command = _hello()
    link = _start(cluster, login, (*_path(login), *_NO_CONNECTION), command)
    try:
        return link.answer(marker, login.patience_seconds)
    finally:
        link.kill()


def _admit(cluster: str, host: str, *, by_hand: bool = False) -> None:
    """Count a new connection, and wait if the last one is too recent. Raises NotConnected beyond the budget."""
    end = now() + PAUSE_SECONDS + 1
    while True:
        with _locked(host, "connections") as path:
            pause = 0 if by_hand else _pause(cluster, _events(path))
            if pause <= 0:
                _write_event(path, "opened")
                return
        if now() + pause > end:
            message = f"other commands are connecting to `{cluster}`"
            raise NotConnected(message, hint="try again in a minute", code="budget")
        with console.status_line(f"connecting to {cluster} in {round(pause)} s: the last connection is recent"):
            sleep(pause)


def _pause(cluster: str, events: Sequence[tuple[float, str]]) -> float:
    """Seconds until the budget allows a connection."""
    words = [what for _, what in events]
    recent = words[len(words) - words[::-1].index("accepted") :] if "accepted" in words else words
    opened = [when for when, what in events if what == "opened"]
    danger = "more could get this address banned"
    if recent.count("refused") >= MOST_REFUSED:
        message = f"`{cluster}` refused {recent.count('refused')} logins; {danger}"
        raise NotConnected(message, hint=f"serried login {cluster}", code="budget")
    if len(opened) >= MOST_OPENED:
        again = show_duration(math.ceil(opened[-MOST_OPENED] + WINDOW_SECONDS - now()))
        message = f"{len(opened)} new connections to `{cluster}` within 10 minutes; {danger}"
        raise NotConnected(message, hint=f"try again in {again}", code="budget")
    return opened[-1] + PAUSE_SECONDS - now() if opened else 0


def _events(path: Path) -> list[tuple[float, str]]:
    """What became of the connections within the window."""
    until, text = now(), path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    pairs = re.findall(r"(?m)^(\d+\.\d+) (\w+)$", text)
    return [(float(when), what) for when, what in pairs if until - WINDOW_SECONDS < float(when) < until + 1]


def _write_event(path: Path, what: str) -> None:
    lines = [f"{when:.3f} {word}\n" for when, word in (*_events(path), (now(), what))]
    files.write_text(path, "".join(lines))


def _explain(cluster: str, host: str, text: str, *, is_batch: bool) -> NotConnected:
    """The error for what ssh has written before it failed."""
    message = "ssh ended without a connection to `{host}`" if text else "`{host}` does not answer"
    known = ((code, sentence) for code, pattern, sentence in _TEXTS if re.search(pattern, text))
    code, message = next(known, ("failed", message))
    hint = _HINTS.get(code, "ssh -v {host} shows each step")
    if code == "login-refused" and is_batch:
        message, hint = "`{host}` asks for a password or a second factor", "serried login {cluster}"
    hint = hint.format(host=host, cluster=cluster)
    return NotConnected(message.format(host=host), hint=hint, details=_tail(text) or None, code=code)


def _tail(text: str) -> str:
    """The last lines, without rules and what a far program may do to a terminal."""
    lines = [line.rstrip() for line in text.splitlines() if re.search(r"\w", line)]
    return "\n".join(lines[-12:])
