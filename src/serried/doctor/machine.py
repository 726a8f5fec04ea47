"""The checks of this machine, a login node or a laptop. They leave no file, and call the scheduler once."""

from __future__ import annotations

import contextlib
import locale
import os
import platform
import re
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
from serried.base.processes import user as user_name
from serried.base.text import ago, counted, duration, spell
from serried.config import profile
from serried.config.layers import Catalogue
from serried.doctor.checks import FIXES, Check
from serried.records import index
from serried.records.record import records_directory
from serried.records.status import latest_attempt
from serried.schedulers.survey import Greeting
from serried.schema.checks import NOT_TESTED, NOTE, OF_MACHINE, OK, PROBLEM

LITTLE_BYTES, LITTLE_SHARE = 1 << 30, 0.02
"""Less free space than both deserves a note: the size, and the share of the file system."""
FEW_FILES = 10_000
SKEW_SECONDS = 5.0
FEW_PROCESSES, FEW_OPEN_FILES = 100, 1024
ASKING_SECONDS, QUOTA_SECONDS = 3.0, 1.0
QUOTA_PROGRAMS = {"lfs": ("quota", "-q", "-u", str(os.getuid())), "quota": ("-w", "-p", "-f")}
"""Each with its arguments before the file system."""
QUOTA = r"\[?(\d+)\]?\*?\s+(\d+)k?\s+(\d+)k?\s+\S+"
QUOTAS = re.compile(rf"^\s*\S+\s+{QUOTA}\s+{QUOTA}\s*$", re.MULTILINE)
"""File system; used KiB, quota, limit and grace; the same of files. A star marks what exceeds its quota."""
MUCH_OF_QUOTA = 0.9


class Machine:
    """This machine, as the user's settings and environment see it."""

    def __init__(self, directory: Path, environ: Mapping[str, str], cluster: str | None = None) -> None:
        self.directory, self.environ, self._name = directory, environ, cluster
        self._greeting: Greeting | None = None

    def checks(self) -> dict[str, Check]:
        """All checks by id, in the order in which they run: a method for each id."""
        return {name: getattr(self, name.replace("-", "_")) for name in OF_MACHINE}

    @cached_property
    def catalogue(self) -> Catalogue:
        return config.catalogue(self.directory, self.environ)

    @cached_property
    def resolved(self) -> config.Resolved:
        return config.resolve(None, (), {}, self._name, self.directory, self.environ, look=False)

    @property
    def name(self) -> str:
        return self.resolved.cluster.name

    @property
    def run_root(self) -> Path:
        return Path(self.resolved.cluster.site.root)

    @property
    def is_elsewhere(self) -> bool:
        """Whether only a login node can answer, as far as the settings can be read."""
        try:
            return self.resolved.is_elsewhere
        except SerriedError:  # the check of the settings reports it
            return False

    def _over_there(self) -> tuple[str, ...]:
        """The finding for a root that is not on this machine; empty if it is here."""
        if not self.resolved.is_elsewhere:
            return ()
        return NOT_TESTED, f"`{self.run_root}` is on `{self.name}`", f"serried doctor --cluster {self.name}"

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
        seen, match = f"`{cluster.name}`, described in {its.origin if its else 'the settings'}", cluster.match
        if cluster.name != self.catalogue.here and (match.hostname or match.environ):
            signs = ", ".join([*match.hostname, *(f"{name}={value}" for name, value in match.environ.items())])
            fix = f"--cluster {self.catalogue.here}, this machine's; or mend `match` in the profile"
            return NOTE, f"{seen}, does not match this machine: {signs}", fix
        return self._compared(cluster.name, seen)

    def _compared(self, name: str, seen: str) -> tuple[str, ...]:
        """The finding for a profile, beside what the scheduler has answered last."""
        try:
            differences = profile.check(name, self.directory, self.environ, asks=False).differences
        except SerriedError:  # nothing is kept
            return OK, seen
        if not differences:
            return OK, f"{seen}, which agrees with the scheduler's last answers"
        wrong = "; ".join(f"`{one.key}` is {one.profile}, not {one.cluster}" for one in differences[:3])
        return NOTE, f"{seen}; by the scheduler's last answers {wrong}", "serried clusters check"

    def account(self) -> tuple[str, ...]:
        cluster, account = self.resolved.cluster, self.resolved.experiment.resources.account
        known = self._greeting or Greeting("")
        default = f"`{known.account}` by the scheduler's default" if known.account else ""
        if account and known.accounts and account.lower() not in known.accounts:
            yours = ", ".join(f"`{name}`" for name in known.accounts)
            return NOTE, f"`{account}` is not among your accounts: {yours}", f"--account {known.accounts[0]}"
        if cluster.needs_account and not account:
            like = ", ".join(f"`{pattern}`" for pattern in cluster.accounts)
            like = f", which looks like {like}" if like else ""
            fix = f"--account NAME{like}; or `account` in `[clusters.{cluster.name}.resources]`, once for all"
            seen = f"jobs on `{cluster.name}` must name an account, and the settings have none"
            return PROBLEM, seen + (f"; {default}" if default else ""), fix
        named = f"`{account}`" if account else default or "none, and the profile says that jobs need none"
        limits = known.limits if account in (None, "", known.account) else ()
        counts = [f"{what}: {most}" if used is None else f"{what}: {used} of {most}" for what, most, used in limits]
        if limits and known.is_full:
            fix = "serried ps: no further job is accepted until one of these ends"
            return PROBLEM, "; ".join([named, *counts]), fix
        return OK, "; ".join([named, *counts])

    def scheduler(self) -> tuple[str, ...]:
        """The only check that calls it. The answer serves `account`, the next check, too."""
        name = self._name or self.catalogue.here
        its = next(each for each in self.catalogue.clusters if each.name == name)
        traits = schedulers.traits(its.scheduler)
        if traits.is_this_machine:
            return OK, f"`{name}` is this machine"
        if not traits.is_here(self.environ):
            return NOT_TESTED, f"{traits.title} is not on this machine", "serried doctor on its login node"
        cluster, began = schedulers.cluster(its.scheduler), time.monotonic()
        argv, given = cluster.greeting(user_name())
        later = (
            f"try again later, because a job cannot be submitted without an answer; `{traits.survey_command}` says more"
        )
        try:
            answer = shell.run(argv, timeout=ASKING_SECONDS, env={**self.environ, "LC_ALL": "C"}, input=given)
        except shell.TimedOut:
            return PROBLEM, f"{traits.title} has not answered within {ASKING_SECONDS:g} s", later
        if answer.status:
            last = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
            return PROBLEM, f"{traits.title} does not answer: {' '.join(last)}", later
        self._greeting = cluster.read_greeting(answer.stdout)
        return OK, f"{traits.title} {self._greeting.version} answered in {time.monotonic() - began:.2f} s"

    def root(self) -> tuple[str, ...]:
        return self._over_there() or self._folder(self.run_root, f"set `root` in `[clusters.{self.name}]`")

    def records(self) -> tuple[str, ...]:
        return self._folder(records_directory(), "export XDG_STATE_HOME=FOLDER")

    def root_on_nodes(self) -> tuple[str, ...]:
        """Nodes have the root if the agents of an earlier run wrote there."""
        if elsewhere := self._over_there():
            return elsewhere
        cluster = self.resolved.cluster
        for ended in index.all_runs().ended.newest(20):
            with contextlib.suppress(SerriedError, OSError):
                record = ended.record
                attempt = latest_attempt(record.where.task(None))
                if record.summary.cluster == cluster.name and attempt and attempt.events.exists():
                    when = ago(time.time() - attempt.events.stat().st_mtime)
                    return OK, f"run {record.id} wrote there {when}"
        return (
            NOT_TESTED,
            "no run of this cluster has written there yet",
            "serried doctor --nodes 1, which writes there",
        )

    def root_clock(self) -> tuple[str, ...]:
        if elsewhere := self._over_there():
            return elsewhere
        folder = _existing(self.run_root)
        try:
            skew = _write_in(folder) - time.time()
        except OSError:
            return NOT_TESTED, "needs `root` to be in order"
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

    def quota(self) -> tuple[str, ...]:
        """The user's own quotas on the file systems of home and root; not those of groups."""
        folders = [Path(home)] if (home := self.environ.get("HOME")) else []
        folders += [] if self.resolved.is_elsewhere else [self.run_root]
        path, seen, worst = self.environ.get("PATH", os.defpath), [], 0.0
        programs = {name: words for name, words in QUOTA_PROGRAMS.items() if shutil.which(name, path=path)}
        if not programs:
            return NOT_TESTED, f"none of {', '.join(QUOTA_PROGRAMS)} is here", "the site's own command for quotas"
        paths = (_existing(folder.resolve()) for folder in folders)
        mounts = (str(next(path for path in (there, *there.parents) if path.is_mount())) for there in paths)
        for mount in dict.fromkeys(mounts):
            for name, words in programs.items():  # `lfs` refuses what is not Lustre
                try:
                    text = shell.run((name, *words, mount), timeout=QUOTA_SECONDS, env=self.environ).stdout
                except shell.TimedOut:
                    return NOT_TESTED, f"`{name}` has not answered within {QUOTA_SECONDS:g} s", f"later: {name}"
                for found in QUOTAS.finditer(text):
                    size, soft_size, most_size, files, soft_files, most_files = map(int, found.groups())
                    size_limit, files_limit = most_size or soft_size, most_files or soft_files
                    if size_limit:
                        seen.append(f"`{mount}`: {spell(size << 10)} of {spell(size_limit << 10)}")
                        worst = max(worst, size / size_limit)
                    if files_limit:
                        seen.append(f"`{mount}`: {files:,} of {files_limit:,} files")
                        worst = max(worst, files / files_limit)
        level = PROBLEM if worst >= 1 else NOTE if worst > MUCH_OF_QUOTA else OK
        fix = "serried clean --list shows the largest files of runs" if level != OK else ""
        return level, "; ".join(seen) or "no quota of yours is reported", fix

    def temporary(self) -> tuple[str, ...]:
        meant, used = self.environ.get("TMPDIR"), Path(tempfile.gettempdir())
        if meant and Path(meant).absolute() != used.absolute():
            return NOTE, f"no file can be written to `{meant}`: `{used}` is used", "export TMPDIR=/tmp"
        return self._folder(used)

    def _folder(self, folder: Path, instead: str = "") -> tuple[str, ...]:
        """Check that files can be created in a folder, or its nearest existing parent, and how much space is free."""
        there = _existing(folder)
        try:
            _write_in(there)
        except OSError as error:
            return PROBLEM, f"`{there}`: {error.strerror}", FIXES.get(error.errno or 0, instead)
        space = os.statvfs(there)
        free, size = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        seen = f"`{folder}`: {spell(free)} free"
        if free < min(LITTLE_BYTES, LITTLE_SHARE * size):
            return NOTE, seen, "serried clean --list shows the largest files of runs"
        if space.f_files and space.f_favail < FEW_FILES:
            return (
                NOTE,
                f"{seen}, and room for {space.f_favail:,} files",
                "serried clean --list counts the files of runs",
            )
        return OK, seen if there == folder else f"{seen}; a submit creates it"

    def umask(self) -> tuple[str, ...]:
        mask = os.umask(0o077)
        os.umask(mask)
        if mask & 0o700:
            return PROBLEM, f"{mask:04o}: you cannot use your own new files", "umask 022, in ~/.bashrc"
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
            return NOTE, f"`{self.directory}` is not in a git repository, so no commit is recorded", "git init"
        return OK, f"`{there.stdout.strip()}`"

    def processes(self) -> tuple[str, ...]:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if limit == resource.RLIM_INFINITY or os.getuid() == 0:
            return OK, "no limit"
        if not os.path.isdir("/proc"):  # noqa: PTH112 - macOS
            return NOT_TESTED, f"at most {limit}; this system has no /proc"
        own = sum(1 for _ in _own_processes())
        if limit - own < FEW_PROCESSES:
            fix = "ps -u $USER -L lists them: end those that you no longer need"
            return NOTE, f"{own} of {limit}, other threads not counted", fix
        return OK, f"{own} of {limit}"

    def open_files(self) -> tuple[str, ...]:
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit < FEW_OPEN_FILES:
            return NOTE, f"at most {limit} in a process", f"ulimit -n {most}"
        return OK, f"at most {limit:,} in a process"

    def ssh(self) -> tuple[str, ...]:
        from serried.remote import link  # most machines are the login node themselves

        hosts = {each.name: each.login for each in self.catalogue.clusters if each.login}
        known = {name: login for name, host in hosts.items() if (login := link.last_login(host))}
        if not known:
            return NOT_TESTED, "no login from here yet"
        closed = [name for name, login in known.items() if login.mode != link.ONCE and not link.is_open(login.host)]
        seen = ", ".join(f"`{name}` {'closed' if name in closed else 'open'}" for name in known)
        needed = [name for name in closed if not known[name].is_batch]  # others open by themselves
        return (NOTE, seen, f"serried login {needed[0]}, before the next command") if needed else (OK, seen)


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
    """The folder, or the nearest one above that exists as far as we may see."""
    for there in (folder, *folder.parents):
        try:
            there.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            pass  # writing there fails for the same reason
        return there
    return folder


def _own_processes() -> Iterator[str]:
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                yield entry.name
