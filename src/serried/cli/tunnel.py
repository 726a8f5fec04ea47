"""`serried tunnel`: connect a local port to a port of a run's node. `serried notebook`: JupyterLab behind a tunnel."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import click

from serried.base import frames
from serried.base.errors import Elsewhere, RunFailed, SerriedError, UsageError
from serried.base.frames import FrameWire, TunnelEnd
from serried.base.hosts import LOOPBACK
from serried.base.text import show_duration
from serried.cli import TYPED, options, run_view
from serried.records.index import Selection
from serried.records.record import Record
from serried.records.status import latest_attempt
from serried.schema import SCHEMA, names
from serried.schema.layout import sent_tree
from serried.submission import tunnel
from serried.submission.deliver import deliver
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide
from serried.submission.tunnel import NOTEBOOK, TunnelTarget
from serried.views import console

_HIGHEST = 65_535
MOST_CONNECTIONS = 200
"""Further connections wait: on some systems, a process may have only 256 open files."""
NEAR_END_SECONDS = 600
SILENT_SECONDS = 60.0
"""Time between two notes that nothing listens on the port: browsers retry often."""
_NOTHING: Mapping[str, Any] = {}


def _ports(text: str | None) -> tuple[int | None, int | None]:
    """The local port and the port of the node. Raises UsageError."""
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
        selection = run_view.select(run)
        run_view.insist_on_one(selection, f" {port}" if port else "")
    except Elsewhere as elsewhere:
        more = [f"--{name}={number}" for name, number in (("node", node), ("rank", rank)) if number is not None]
        _open(elsewhere.meant(run), elsewhere, (local, remote), more=more, as_json=as_json)
        return
    plan = selection.record.plan
    if remote is None and NOTEBOOK[-1] not in plan.command:
        hint = f"a notebook's port is known; of others: serried tunnel {selection} 6006"
        raise UsageError(f"run `{selection}` runs no notebook: name a port", hint=hint)
    target = TunnelTarget(selection, remote, tunnel.node_of(plan, node, rank, latest_attempt(selection.place)))
    if names.AT in os.environ:  # typed on another machine
        with console.status_line("") as line:
            tunnel.serve(target, line.update)
    else:
        _open(str(selection), target, (local, remote), as_json=as_json)


class TunnelListener:
    def __init__(self, port: int, *, as_json: bool = False) -> None:
        """Listen on `port`; 0 means any free port. Raises UsageError."""
        try:
            self.socket = socket.create_server((LOOPBACK, port), backlog=128)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            hint = "choose another one, as in `9000:PORT`, or `0:PORT` for any free one"
            raise UsageError(f"cannot listen on port {port} of this machine: {reason}", hint=hint) from None
        self.facts = dict[str, Any]()
        """The facts that `submission.tunnel.hold` lists; empty until connections are carried."""
        self.line: console.MovingLine | None = None
        """The status line while it waits for a run of this cluster."""
        self._as_json = as_json
        self._ends, self._complained, self._number = inf, -inf, 0

    def carry(self, reads: int, writes: int, facts: Mapping[str, Any] = _NOTHING) -> Mapping[str, Any] | None:
        """Carry connections until the other end closes. Returns its EXIT document; None if it sent none.

        Raises SerriedError if the other end breaks the protocol.
        """
        wire = FrameWire(reads, writes)
        end, known, is_ready = TunnelEnd(wire), dict(facts), False
        self._ends = inf
        try:
            while not wire.has_ended:
                may_accept = is_ready and len(end.connections) < MOST_CONNECTIONS
                waiting, arrived = end.step([self.socket.fileno()] if may_accept else [], self._warn())
                for frame in arrived:
                    if frame.channel:
                        self._complain(frame.json().get("errno"))
                    elif frame.kind == frames.EXIT:
                        return frame.json()
                    elif new := frame.json():
                        known |= new
                    else:
                        is_ready = True
                        self._begin(known)
                if waiting:
                    self._number += 1
                    end.add(self._number, self.socket.accept()[0])
                    end.send(self._number, frames.REQUEST, b"{}")
        except (ValueError, TypeError, LookupError) as error:
            raise SerriedError("the other end of the tunnel sent something else", details=str(error)) from None
        finally:
            end.close()
        return None

    def _begin(self, facts: Mapping[str, Any]) -> None:
        left = facts["seconds_left"]
        self._ends = inf if left is None else time.monotonic() + left
        if self.line:
            self.line.clear()
        if facts.get("token") != self.facts.get("token") or not self.facts:  # each attempt has a new token
            self._print_address(facts)
        self.facts = {**facts}
        console.say(f"leads to port {facts['port']} of {facts['host']}, until {facts['run']} ends; Ctrl-C closes it")

    def _print_address(self, facts: Mapping[str, Any]) -> None:
        port = self.socket.getsockname()[1]
        address = f"{LOOPBACK}:{port}"
        url = f"http://{address}/lab?token={facts['token']}" if "token" in facts else None
        if self._as_json:
            found = {"address": address, "url": url, **{name: facts[name] for name in ("run", "host", "port")}}
            console.out(json.dumps({"schema": SCHEMA, **found}))
        else:
            console.out(url or address)
        sys.stdout.flush()
        if self.line and "SSH_CONNECTION" in os.environ:
            console.note(f"other users of this machine can connect to port {port}, too")

    def _warn(self) -> float:
        """Warn if the time limit is near. Returns the seconds until then."""
        left = self._ends - time.monotonic()
        if left <= NEAR_END_SECONDS:
            self._ends = inf
            console.warning(f"{self.facts['run']} ends in {show_duration(int(max(left, 0)))}: its time limit")
        return min(self._ends - time.monotonic() - NEAR_END_SECONDS, NEAR_END_SECONDS)

    def _complain(self, code: str | None) -> None:
        is_common = code in (None, "ECONNRESET", "EPIPE")
        if not is_common and time.monotonic() - self._complained > SILENT_SECONDS:
            self._complained = time.monotonic()
            text = os.strerror(getattr(errno, str(code), errno.EIO)).lower()
            text = "nothing listens there" if code == "ECONNREFUSED" else text
            console.note(f"port {self.facts['port']} of {self.facts['host']}: {text}; the tunnel stays open")


def _open(
    run: str,
    way: TunnelTarget | Elsewhere,
    ports: tuple[int | None, int | None] = (None, None),
    *,
    more: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Listen here, and carry connections to the run, here or on another cluster, until it has ended."""
    local, remote = ports
    listener, last = TunnelListener(local or 0, as_json=as_json), _NOTHING
    try:
        if isinstance(way, TunnelTarget):
            with console.status_line("") as listener.line:
                last = tunnel.end_of(tunnel.hold(way, listener.carry, listener.line.update))
        else:
            from serried.remote import relay  # most runs are here

            words = ("tunnel", run, *([str(remote)] if remote else []), *more)
            while not last.get("state"):  # wait for its next attempt
                last = relay.through_tunnel(way, words, listener.carry)
    except KeyboardInterrupt:
        console.say()
        console.note("closed the tunnel; the run continues")
        if remote is None:
            console.next_steps(
                [(f"serried tunnel {run}", "open it again"), (f"serried stop {run}", "end the notebook")]
            )
        sys.exit(130)
    state, hint = last["state"], f"serried why {run}"
    if not listener.facts and last["tail"]:
        details = "\n".join(map(str, last["tail"]))
        raise RunFailed(f"run `{run}` has ended: it is {state}", hint=hint, details=details)
    if not listener.facts:
        raise UsageError(f"run `{run}` has ended: it is {state}", hint=hint)
    console.say(f"closed the tunnel: run `{listener.facts['run']}` has ended, {state}")


@click.command(cls=options.Sorted)
@options.experiment
@options.resources
@options.common
@options.yes
@click.option("--detach", is_flag=True, help="Submit it and print its id; `serried tunnel RUN` opens it.")
@options.dry_runs
def notebook_command(*, experiment: str | None, yes: bool, detach: bool, dry_run: bool, **values: Any) -> None:
    r"""Run JupyterLab in a job, with an experiment's environment, and open it here.

    \b
    serried notebook train                   with the resources of the experiment
    serried notebook --gpus 1 --time 4h      with these resources
    serried tunnel last                      open it again, also from a laptop

    It prints an address with a token for your browser. The environment needs `jupyterlab`. Notebooks
    are in the project itself; if you type this on a laptop, in a copy on the cluster: `serried fetch RUN
    --to DIR` brings the files that changed. Ctrl-C closes the tunnel, and `serried stop RUN` ends the
    job. The job ends at its time limit: save your work before.
    """
    way: TunnelTarget | Elsewhere
    try:
        run = _submit(experiment, values, yes=yes, dry_run=dry_run)
        if not run:
            return
        way = TunnelTarget(Selection(Record.load(run)), None)
    except Elsewhere as elsewhere:
        from serried.remote import relay

        answer, way = bytearray(), Elsewhere(elsewhere.cluster, elsewhere.message)
        name, *typed = click.get_current_context().meta[TYPED]
        words = [name, *([] if detach else ["--detach"]), *typed]
        if status := relay.relay(elsewhere, words, "submits", on_output=answer.extend):
            sys.exit(status)
        run = answer.decode().strip()
    if detach:
        console.out(run)
    else:
        _open(run, way)


def _submit(experiment: str | None, values: Mapping[str, Any], *, yes: bool, dry_run: bool) -> str:
    """Submit the notebook: one rank with the resources of one node. Returns the run's id, empty after a dry run."""
    request = Request(
        experiment=experiment,
        command=NOTEBOOK,
        overrides={
            "resources.nodes": 1,
            "resources.spare_nodes": 0,
            "resources.ranks": 1,
            **options.overrides(values, values["settings"]),
        },
        cluster=values["cluster"],
        array="off",
        name=values["name"] or f"{experiment or ''}-notebook".strip("-"),
        is_sent=not dry_run,
    )
    if sent_tree(Path.cwd()) is None:  # otherwise the project is on a laptop
        request = request.with_setting("project.snapshot", value=False)
    decided = decide(request, Path.cwd(), os.environ)
    limit = decided.plan.limit._replace(restarts=0)
    plan = decided.plan._replace(command=NOTEBOOK, shell=False, beside=(), limit=limit, after=())
    plan = plan if experiment else plan._replace(experiment="notebook")
    with options.progress(dry_run=dry_run) as observe:
        prepared = prepare(plan, decided.resolved, os.environ, observe=observe)
    if dry_run:
        options.dry_run(prepared, as_json=False)
        return ""
    options.show_plan(prepared)
    options.agree(prepared.warnings, yes=yes)
    return deliver(prepared).id
