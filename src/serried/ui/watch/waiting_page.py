"""The page of a run that waits: why, since when, until when, and what would start sooner. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from serried.protocol import names
from serried.records.verdict import UNCERTAIN
from serried.ui import console
from serried.ui.text import duration, local_time, wrapped
from serried.ui.watch.drawing import Canvas, Line, Span, footer, line, titled, whole
from serried.ui.watch.run_page import fit_name

KEYS = (("esc", "back"), ("S", "stop"), ("?", "help"), ("q", "quit"))
_LABEL = 12


@dataclass(frozen=True)
class WaitingPage:
    id: str
    name: str
    state: str
    size: str = ""
    why: str = ""
    """In plain words."""
    reason: str = ""
    """The scheduler's own word."""
    waited: float | None = None
    starts: float | None = None
    starts_in: float | None = None
    steps: tuple[str, ...] = ()
    ahead: str = ""
    """The jobs that come first."""
    sooner: tuple[str, ...] = ()
    notice: str = ""


def draw(page: WaitingPage, canvas: Canvas) -> list[Line]:
    """As many lines as the terminal has rows."""
    state = Span(page.state, console.state_style(page.state))
    lines = [line(Span(f"{page.id} ", "head"), fit_name(page.name, canvas), " ", state, f"  {page.size}")]
    lines += [line(Span(f"! {page.notice}", "warning"))] if page.notice else []
    is_known = page.state not in (names.UNKNOWN, UNCERTAIN)
    lines.append(())
    lines.append(titled("why it waits" if is_known else "why", canvas.columns, canvas))
    lines += _fact("", page.why or "the scheduler gives no reason", canvas)
    lines += _fact("reason", page.reason, canvas)
    lines += _fact("waits for", duration(page.waited) if page.waited is not None else "", canvas)
    lines += _fact("ahead", page.ahead, canvas)
    lines += _fact("expected", _expected(page), canvas) if is_known else []
    if page.sooner:
        lines += [(), titled("what would start sooner", canvas.columns, canvas)]
        lines += [one for change in page.sooner for one in _fact("", f"- {change}", canvas)]
    if page.steps:
        lines += [(), titled("what to do", canvas.columns, canvas)]
        lines += [one for step in page.steps for one in _fact("", f"- {step}", canvas)]
    return whole(lines, footer(KEYS, canvas), canvas)


def _expected(page: WaitingPage) -> str:
    if page.starts is None or page.starts_in is None:
        return "no estimate yet"
    if page.starts_in <= 0:
        return "now"
    return f"{local_time(page.starts)}, in {duration(page.starts_in)}"


def _fact(label: str, text: str, canvas: Canvas) -> list[Line]:
    if not text:
        return []
    indent = _LABEL if label else 0
    texts = wrapped(text, max(canvas.columns - indent - 2, 20))
    first = [line(Span(f"  {label:<{indent}}", "quiet"), texts[0])]
    return [*first, *(line(" " * (indent + 2), further) for further in texts[1:])]
