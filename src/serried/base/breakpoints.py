"""`breakpoint()` in a rank: a debugger on the terminal of `serried run`, or advice where ranks have no terminal.

PYTHONBREAKPOINT names `enter`, unless the user sets that variable. A program's own `sys.breakpointhook` comes first.
"""

from __future__ import annotations

import contextlib
import os
import pdb  # noqa: T100 - the debugger is the point
import sys
import time
from typing import Any, Iterator, Optional, Set, Tuple

SHOW_SECONDS = 0.3
"""For `serried run` to print what the program printed before."""
KEYS = 6
"""The position of the control characters in what `termios.tcgetattr` returns."""
NO_KEY = b"\0"

_advised: Set[Tuple[str, int]] = set()
_debugger: Optional[pdb.Pdb] = None
_interrupt_key = b"\x03"
"""The key that sends INT on this terminal."""


def enter(*, header: Optional[str] = None, **others: Any) -> None:
    """Open the debugger in the caller, or print once for each place what to do instead."""
    global _debugger  # noqa: PLW0603 - one debugger keeps its breakpoints
    frame = sys._getframe().f_back  # noqa: SLF001 - as `pdb` does
    reason = _obstacle(os.environ)
    if reason:
        place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("?", 0)
        if place in _advised or sys.stderr is None:
            return
        _advised.add(place)
        with contextlib.suppress(OSError, ValueError):
            print(
                f"serried: breakpoint() at {place[0]}:{place[1]} is skipped: {reason}\n"
                "serried: hint: `serried run --ranks 1` in a terminal opens the debugger here\n"
                "serried: hint: `serried stacks` prints where ranks are; debugpy can attach to each",
                file=sys.stderr,
                flush=True,
            )
        return
    _debugger = _debugger or TerminalDebugger()
    if header is not None:
        _debugger.message(header)
    _debugger.set_trace(frame, **others)


def _obstacle(environ: "os._Environ[str]") -> str:
    """Why no debugger can read from the terminal here; empty if it can."""
    size = environ.get("WORLD_SIZE") or "1"
    if size != "1":
        return f"this run has {size} ranks, which cannot share a terminal"
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if parent is not None and parent() is not None:
        return "this is a worker process, which does not read from the terminal"
    try:
        return "" if os.isatty(0) else "this run has no terminal"
    except OSError:
        return "this run has no terminal"


class TerminalDebugger(pdb.Pdb):
    """Talks to the terminal that is its stdin; the program's stdout stays the log."""

    def __init__(self) -> None:
        super().__init__(nosigint=True)

    def interaction(self, *where: Any) -> None:
        with _on_terminal():
            self.stdout = sys.stdout
            _bind_interrupt()
            super().interaction(*where)

    # Ctrl-C at the prompt must not end the run: the kernel would send INT to `serried run`.

    def preloop(self) -> None:
        super().preloop()
        _let_interrupt(allowed=False)

    def precmd(self, line: str) -> str:
        _let_interrupt(allowed=True)
        return str(super().precmd(line))

    def postcmd(self, stop: bool, line: str) -> bool:
        is_over = bool(super().postcmd(stop, line))
        _let_interrupt(allowed=is_over)
        return is_over


@contextlib.contextmanager
def _on_terminal() -> Iterator[None]:
    """Let descriptor 1 and `sys.stdout` be the terminal: only then Python edits lines with readline."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    time.sleep(SHOW_SECONDS)
    log, before = os.dup(1), (sys.stdin, sys.stdout)
    terminal = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    os.dup2(terminal, 1)
    os.close(terminal)
    sys.stdin = sys.__stdin__
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stdin, sys.stdout = before
        os.dup2(log, 1)
        os.close(log)
        _let_interrupt(allowed=True)


def _let_interrupt(*, allowed: bool) -> None:
    """Whether Ctrl-C sends INT, or is a key at the prompt."""
    global _interrupt_key  # noqa: PLW0603 - there is one terminal
    with contextlib.suppress(ImportError, OSError):
        import termios

        with contextlib.suppress(termios.error):
            modes = termios.tcgetattr(0)
            if modes[KEYS][termios.VINTR] != NO_KEY:
                _interrupt_key = modes[KEYS][termios.VINTR]
            modes[KEYS][termios.VINTR] = _interrupt_key if allowed else NO_KEY  # readline itself sets ISIG
            termios.tcsetattr(0, termios.TCSANOW, modes)


def _bind_interrupt() -> None:
    """Let Ctrl-C clear the line."""
    with contextlib.suppress(ImportError):
        import readline

        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^C ed-kill-line" if is_libedit else '"\\C-c": kill-whole-line')
