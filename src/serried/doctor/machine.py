"""The checks of this machine, a login node or a laptop. They leave no file, and call the scheduler once."""

from __future__ import annotations

import contextlib
import locale
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from serried import config, schedulers
from serried.base import shell
from serried.base.errors import SerriedError
from serried.base.text import ago, counted, duration, spell
from serried.config.layers import Catalogue
from serried.doctor.checks import Check
from serried.records import index
from serried.records.record import records_directory
from serried.records.status import latest_attempt
from serried.schema.checks import NOT_TESTED, NOTE, OK, PROBLEM

LITTLE_BYTES, LITTLE_SHARE = 1 << 30, 0.02
"""Less free space than both deserves a note: the size, and the share of the file system."""
FEW_FILES = 10_000
SKEW_SECONDS = 5.0
FEW_PROCESSES, FEW_OPEN_FILES = 100, 1024
ASKING_SECONDS = 4.0


class Machine:
    """This machine, as the user's settings and environment see it."""

    def __init__(self, directory: Path, environ: Mapping[str, str], cluster: str | None = None) -> None:
        self.directory, self.environ, self._name = directory, environ, cluster

    def checks(self) -> dict[str, Check]:
        """All checks by id, in the order in which they run."""
        return {
            "python": self.python,
            "settings": self.settings,
            "scheduler": self.scheduler,
            "cluster": self.cluster,
            "account": self.account,
            "root": lambda: self._over_there() or self._folder(self.root),
            "root-on-nodes": lambda: self._over_there() or self.root_on_nodes(),
            "root-clock": lambda: self._over_there() or self.root_clock(),
            "records": lambda: self._folder(records_directory()),
            "home": self.home,
            "temporary": self.temporary,
            "umask": self.umask,
            "locale": self.locale,
            "git": self.git,
            "processes": self.processes,
            "open-files": self.open_files,
            "connections": self.connections,
        }

    @cached_property
    def catalogue(self) -> Catalogue:
        return config.catalogue(self.directory, self.environ)

    @cached_property
    def resolved(self) -> config.Resolved:
        return config.resolve(None, (), {}, self._name, self.directory, self.environ, look=False)

    @property
    def root(self) -> Path:
        return Path(self.resolved.cluster.site.root)

    def _over_there(self) -> tuple[str, ...]:
        """The finding for a root that is not on this machine; empty if it is here."""
        if not self.resolved.is_elsewhere:
            return ()
        return NOT_TESTED, f"`{self.root}` is on `{self.resolved.cluster.name}`", "serried doctor on its login node"

    def python(self) -> tuple[str, ...]:
        return OK, f"{platform.python_version()} on {platform.node()}"

    def settings(self) -> tuple[str, ...]:
        found = self.catalogue
        where = f"`{found.file}`" if found.file else "no serried.toml here"
        return OK, f"{where}, {counted(len(found.experiments), 'experiment')}"

    def cluster(self) -> tuple[str, ...]:
        cluster = self.resolved.cluster
        if self.resolved.is_elsewhere:
            return OK, f"`{cluster.name}` is reached by `ssh`"
        if schedulers.traits(cluster.scheduler).is_this_machine:
            return NOTE, f"`{cluster.name}`: {schedulers.absent(self.environ)}", "serried login NAME, for a cluster"
        entries = self.catalogue.clusters
        its = next((entry for entry in entries if entry.name == cluster.name), None)
        if its and its.is_shipped and cluster.name in schedulers.NAMES:
            fix = "serried clusters learn --save writes one: partitions, limits and GPUs"
            return NOTE, f"`{cluster.name}`, which serves clusters without a profile", fix
        return OK, f"`{cluster.name}`, described in {its.origin if its else 'the settings'}"

    def account(self) -> tuple[str, ...]:
        cluster, account = self.resolved.cluster, self.resolved.experiment.resources.account
        if account:
            return OK, f"`{account}`"
        if not cluster.needs_account:
            return OK, "none, and the profile says that jobs need none"
        like = (
            f", which looks like {', '.join(f'`{pattern}`' for pattern in cluster.accounts)}"
            if cluster.accounts
            else ""
        )
        fix = f"--account NAME{like}; or `account` in `[clusters.{cluster.name}.resources]`, once for all"
        return PROBLEM, f"jobs on `{cluster.name}` must name an account, and the settings have none", fix

    def scheduler(self) -> tuple[str, ...]:
        name = self._name or self.catalogue.here
        its = next(each for each in self.catalogue.clusters if each.name == name)
        traits = schedulers.traits(its.scheduler)
        if not traits.alive:
            return OK, f"`{name}` is this machine"
        if not traits.is_here(self.environ):
            fix = f"ssh {its.login}, then serried doctor" if its.login else "serried doctor on its login node"
            return NOT_TESTED, f"{traits.title} is not on this machine", fix
        began, command = time.monotonic(), " ".join(traits.alive)
        try:
            answer = shell.run(traits.alive, timeout=ASKING_SECONDS, env=self.environ)
        except shell.TimedOut:
            return PROBLEM, f"{traits.title} has not answered within {ASKING_SECONDS:g} s", f"later: {command}"
        if answer.status:
            said = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
            return PROBLEM, f"{traits.title} does not answer: {' '.join(said)}", f"later: {command}"
        return OK, f"{traits.title} answered in {time.monotonic() - began:.2f} s"

    def root_on_nodes(self) -> tuple[str, ...]:
        """Nodes have the root if the agents of an earlier run wrote there."""
        cluster = self.resolved.cluster
        for ended in index.all_runs().ended.newest(20):
            with contextlib.suppress(SerriedError, OSError):
                record = ended.record
                attempt = latest_attempt(record.where.task(None))
                if record.summary.cluster == cluster.name and attempt and attempt.events.exists():
                    when = ago(time.time() - attempt.events.stat().st_mtime)
                    return OK, f"run {record.id} wrote there {when}"
        return NOT_TESTED, "no run of this cluster has written there yet"

    def root_clock(self) -> tuple[str, ...]:
        folder = _existing(self.root)
        skew = _write_in(folder) - time.time()
        if abs(skew) < SKEW_SECONDS:
            return OK, f"differs by less than {SKEW_SECONDS:g} s"
        which = "ahead of" if skew > 0 else "behind"
        seen = f"the clock of `{folder}` is {duration(abs(skew))} {which} this machine's"
        return NOTE, seen, "tell the site's support"

    def home(self) -> tuple[str, ...]:
        if not self.environ.get("HOME"):
            return NOTE, "the variable HOME is not set: many programs need it", "export HOME, as a login shell does"
        folder = Path(self.environ["HOME"])
        level, seen, *fix = self._folder(folder)
        if level == OK and os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):  # not on macOS
            return NOTE, f"programs in `{folder}` cannot be executed", "keep environments in another folder"
        return level, seen, *fix

    def temporary(self) -> tuple[str, ...]:
        meant, used = self.environ.get("TMPDIR"), Path(tempfile.gettempdir())
        if meant and Path(meant).absolute() != used.absolute():
            return NOTE, f"no file can be written to `{meant}`: `{used}` is used", "export TMPDIR=/tmp"
        return self._folder(used)

    def _folder(self, folder: Path) -> tuple[str, ...]:
        """Check that files can be created in a folder, or its nearest existing parent, and how much space is free."""
        there = _existing(folder)
        _write_in(there)
        space = os.statvfs(there)
        free, size = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        seen = f"`{folder}`: {spell(free)} free"
        if free < min(LITTLE_BYTES, LITTLE_SHARE * size):
            return NOTE, seen, "serried clean --list shows the largest files"
        if space.f_files and space.f_favail < FEW_FILES:
            return NOTE, f"{seen}, and room for {space.f_favail:,} files", "delete files: each counts"
        return OK, seen if there == folder else f"{seen}; a submit creates it"

    def umask(self) -> tuple[str, ...]:
        mask = os.umask(0o077)
        os.umask(mask)
        if mask & 0o700:
            return PROBLEM, f"{mask:04o}: your own new files cannot be used by you", "umask 022, in ~/.bashrc"
        if not mask & 0o002:
            return NOTE, f"{mask:04o}: others can change your new files", "umask 022, or 027 with your group"
        return OK, f"{mask:04o}"

    def locale(self) -> tuple[str, ...]:
        encoding = locale.getpreferredencoding(False)
        if encoding.replace("-", "").lower() == "utf8":
            return OK, encoding
        return NOTE, f"{encoding}: other characters appear as `?`", "export LC_ALL=C.UTF-8"

    def git(self) -> tuple[str, ...]:
        if not shutil.which("git", path=self.environ.get("PATH", os.defpath)):
            return NOTE, "not installed: a snapshot takes all files, and records no commit", "module load git"
        there = shell.run(("git", "-C", str(self.directory), "rev-parse", "--show-toplevel"), env=self.environ)
        if there.status and any((folder / ".git").exists() for folder in (self.directory, *self.directory.parents)):
            said = there.stderr.strip().partition("\n")[0]
            return NOTE, f"git refuses this repository, so no commit is recorded: {said}", "git status says what to do"
        if there.status:
            return NOTE, f"`{self.directory}` is in no repository: no commit is recorded", "git init"
        return OK, f"`{there.stdout.strip()}`"

    def processes(self) -> tuple[str, ...]:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if limit == resource.RLIM_INFINITY or os.getuid() == 0:
            return OK, "no limit"
        if not os.path.isdir("/proc"):  # noqa: PTH112 - macOS
            return NOT_TESTED, f"at most {limit}; this system has no /proc"
        own = sum(1 for _ in _own_processes())
        if limit - own < FEW_PROCESSES:
            fix = "ps -u $USER -L shows them: end what you need no more"
            return NOTE, f"{own} of {limit}, other threads not counted", fix
        return OK, f"{own} of {limit}"

    def open_files(self) -> tuple[str, ...]:
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit < FEW_OPEN_FILES:
            return NOTE, f"at most {limit} in a process", f"ulimit -n {most}"
        return OK, f"at most {limit:,} in a process"

    def connections(self) -> tuple[str, ...]:
        from serried.remote import link  # most machines are the login node themselves

        hosts = {each.name: each.login for each in self.catalogue.clusters if each.login}
        known = {name: link.last_login(host) for name, host in hosts.items()}
        seen = [f"`{name}` {'open' if link.is_open(hosts[name]) else 'closed'}" for name, its in known.items() if its]
        if not seen:
            return NOT_TESTED, "no login from here yet"
        return OK, ", ".join(seen)


def _write_in(folder: Path) -> float:
    """Write an unnamed file, and return its modification time. Raises OSError with the folder's name."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"serried\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError as error:
        error.filename = str(folder)
        raise


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _own_processes() -> Iterator[str]:
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                yield entry.name
