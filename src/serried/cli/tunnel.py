"""`serried tunnel`: a port of a run's node as a port of this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from serried.base.errors import Elsewhere, UsageError
from serried.base.hosts import LOOPBACK
from serried.base.text import show_duration
from serried.cli import run_view
from serried.records.index import LAST
from serried.schema import SCHEMA, names
from serried.submission import tunnel
from serried.submission.tunnel import TunnelListener, TunnelTarget
from serried.views import console

_HIGHEST = 65_535
_NOTHING: Mapping[str, Any] = {}


def _ports(text: str | None) -> tuple[int | None, int | None]:
    """The local port and that of the node. Raises UsageError."""
    if text is None:
        return None, None
    words = text.split(":")
    if len(words) > 2 or not all(word.isdecimal() and int(word) <= _HIGHEST for word in words) or not int(words[-1]):
        hint = "8888 for the same port here, 9000:8888 for port 9000 here, 0:8888 for any free one"
        raise UsageError(f"cannot read `{text}` as a port", hint=hint)
    return int(words[0]), int(words[-1])


@click.command(epilog=run_view.HELP)
@run_view.one_run
@click.argument("port", metavar="[[LOCAL:]PORT]", required=False)
@click.option("--node", type=click.IntRange(0), metavar="N", help="Node of the run, counted from 0.  [default: 0]")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="The node of this rank.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in one line, once the tunnel is open.")
def command(*, run: str, port: str | None, node: int | None, rank: int | None, as_json: bool) -> None:
    r"""Reach PORT of a node of RUN as a port of this machine: a web page or a debugger of the job.

    \b
    serried tunnel last 6006           http://127.0.0.1:6006 here
    serried tunnel k3f9q2 9000:6006    http://127.0.0.1:9000 here
    serried tunnel k3f9q2 0:5678 --rank 3

    Works from a laptop too, also where the login node or the network forwards nothing: the
    bytes pass through a step of the job. A server that listens on the node's loopback is
    enough. The command waits until RUN runs, and ends with RUN; Ctrl-C ends only the tunnel.
    """
    if rank is not None:
        run_view.exclude("--rank", "a rank runs on one node: name the rank", node=node)
    local, remote = _ports(port)
    try:
        selection = run_view.select_one(run)
    except Elsewhere as elsewhere:
        run = run.replace(LAST, elsewhere.run, 1) if elsewhere.run else run
        options = [f"--{name}={number}" for name, number in (("node", node), ("rank", rank)) if number is not None]
        _open(elsewhere, ("tunnel", run, *([str(remote)] if remote else []), *options), local, as_json=as_json)
        return
    target = TunnelTarget(selection, remote, node or 0, rank)
    if names.AT in os.environ:  # typed on another machine
        with console.status_line("") as line:
            tunnel.serve(target, line.update)
    else:
        _open(target, (), local, as_json=as_json)


class _TunnelLines:
    """What is said of a tunnel while it is open."""

    def __init__(self, port: int, line: console.MovingLine | None, *, as_json: bool) -> None:
        """`line` is that of the wait for a run of our own cluster."""
        self.port, self.facts = port, dict[str, Any]()
        self._line, self._as_json = line, as_json

    def ready(self, facts: Mapping[str, Any]) -> None:
        if self._line:
            self._line.clear()
        if not self.facts:
            self._print_address(facts)
        self.facts.update(facts)
        console.say(f"leads to port {facts['port']} of {facts['host']}, until {facts['run']} ends; Ctrl-C closes it")

    def _print_address(self, facts: Mapping[str, Any]) -> None:
        address = f"{LOOPBACK}:{self.port}"
        if self._as_json:
            found = {"address": address, **{name: facts[name] for name in ("run", "host", "port")}}
            console.out(json.dumps({"schema": SCHEMA, **found}))
        else:
            console.out(address)
        sys.stdout.flush()
        if self._line and "SSH_CONNECTION" in os.environ:
            console.note(f"other users of this machine can connect to port {self.port}, too")

    def refused(self, facts: Mapping[str, Any], reason: str) -> None:
        console.note(f"port {facts['port']} of {facts['host']}: {reason}; the tunnel stays open")

    def near_end(self, seconds: float) -> None:
        console.warning(f"{self.facts['run']} ends in {show_duration(int(max(seconds, 0)))}: its time limit")


def _open(way: TunnelTarget | Elsewhere, words: Sequence[str], local: int | None, *, as_json: bool) -> None:
    """Listen here, and carry connections until the run has ended: to our cluster, or by `words` on another one."""
    listener = tunnel.listen(local or 0)
    port = listener.getsockname()[1]
    try:
        if isinstance(way, TunnelTarget):
            with console.status_line("") as line:
                shown = _TunnelLines(port, line, as_json=as_json)
                state = tunnel.hold(way, TunnelListener(listener, shown), line.update).state
        else:
            from serried.remote import relay  # most runs are here

            shown, last = _TunnelLines(port, None, as_json=as_json), _NOTHING
            carrier = TunnelListener(listener, shown)
            while not last.get("state"):  # of its next attempt
                last = relay.through_tunnel(way, words, carrier.carry)
            state = last["state"]
    except KeyboardInterrupt:
        console.say()
        console.note("closed the tunnel; the run continues")
        sys.exit(130)
    if not shown.facts:
        run = click.get_current_context().params["run"]
        raise UsageError(f"run `{run}` has ended: it is {state}", hint="a tunnel leads to a run that runs or waits")
    console.say(f"closed the tunnel: run `{shown.facts['run']}` has ended, {state}")
