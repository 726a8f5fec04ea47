"""`serried login`: connect to the login node of a cluster, and say how commands reach it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from serried import config
from serried.base import text
from serried.base.errors import NotConnected, UsageError, did_you_mean
from serried.base.text import BadDuration, read_duration, show_duration
from serried.cli import run_view
from serried.remote import link
from serried.views import console

WAYS = {
    link.MASTER: "one connection for all commands",
    link.SESSION: "one session for all commands",
    link.ONCE: "a connection for each command",
    "": "-",
}


@click.command()
@click.argument("cluster", required=False, type=run_view.CLUSTER)
@click.option("--check", is_flag=True, help="Say whether commands can reach CLUSTER now: exit code 0 or 4. No prompts.")
@click.option("--close", is_flag=True, help="Close the connection.")
@click.option("--keep", metavar="TIME", help="Keep an unused connection so long; the default is 1h.")
@run_view.as_json
def command(*, cluster: str | None, check: bool, close: bool, keep: str | None, as_json: bool) -> None:
    r"""Connect to a cluster from a laptop, or list the clusters to connect to.

    ssh asks for your password, second factor or passphrase, here and nowhere else. Other commands use this
    connection and never prompt. CLUSTER needs `login`, a host of ~/.ssh/config, in its profile.

    \b
    serried login fir
    serried login fir --keep 8h
    serried login fir --check
    """
    clusters = config.catalogue(Path.cwd(), os.environ).clusters
    hosts = {each.name: each.login for each in clusters if each.login and (cluster or not each.is_retired)}
    if cluster is None:
        if check or close or keep:
            raise UsageError("no cluster is named", hint="serried login lists the clusters to connect to")
        _list(hosts, as_json=as_json)
        return
    if cluster not in hosts:
        near = did_you_mean(cluster, hosts, command="serried login")
        hint = near or f'in the profile: [clusters.{cluster}] and login = "HOST", a host of ~/.ssh/config'
        raise UsageError(f"cluster `{cluster}` has no `login`", hint=hint)
    host = hosts[cluster]
    if close:
        was_open = link.sign_out(host)
        console.say(f"{'closed the connection' if was_open else 'no connection of Serried was open'}: {cluster}")
        return
    login = link.check(cluster, host) if check else _sign_in(cluster, host, keep)
    if as_json:
        console.out_json(clusters=[_document(cluster, host)])
        return
    kept = "" if login.mode == link.ONCE else f", kept for {show_duration(login.keep_seconds)} after its last use"
    console.out(f"{cluster}: connected to {login.node or host}")
    console.out(f"  way:     {WAYS[login.mode]}{kept}")
    console.out(f"  reason:  {login.why}")
    again = "opens when needed, without prompts" if login.is_batch else f"needs you: serried login {cluster}"
    console.out(f"  another: {again}")


def _sign_in(cluster: str, host: str, keep: str | None) -> link.Login:
    try:
        seconds = read_duration(keep) if keep else None
    except BadDuration as error:
        raise UsageError(f"`--keep` {error}", hint=error.hint) from None
    before = link.last_login(host)
    seconds = seconds or (before.keep_seconds if before else link.KEEP_SECONDS)
    try:
        with open("/dev/tty", "rb"):  # noqa: PTH123 - where ssh asks
            may_prompt = True
    except OSError:
        may_prompt = False
    try:
        return link.sign_in(cluster, host, keep_seconds=seconds, may_prompt=may_prompt)
    except KeyboardInterrupt:
        sys.exit(130)
    except NotConnected as error:
        if not may_prompt and error.code in ("login-refused", "host-key-unknown"):
            error.hint = f"serried login {cluster}, on a terminal: it has to prompt"
        raise


def _document(cluster: str, host: str) -> dict[str, object]:
    known = link.last_login(host)
    return {
        "name": cluster,
        "host": host,
        "open": link.is_open(host),
        "prompts": None if known is None else not known.is_batch,
        "mode": known.mode if known and known.mode else None,
        "node": known.node if known and known.node else None,
        "reason": known.why if known and known.why else None,
        "since": text.iso(known.when) if known else None,
    }


def _list(hosts: Mapping[str, str], *, as_json: bool) -> None:
    rows = [_document(cluster, host) for cluster, host in sorted(hosts.items())]
    if as_json:
        console.out_json(clusters=rows)
        return
    if not rows:
        hint = 'a cluster to connect to has, in its profile, login = "HOST": a host of ~/.ssh/config'
        raise UsageError("no cluster has a `login`", hint=hint)
    table = []
    for row in rows:
        closed = "needs a login" if row["prompts"] else "opens when needed" if row["mode"] else "no login yet"
        state = "connected" if row["open"] else closed
        table.append([str(row["name"]), str(row["host"]), state, str(row["node"] or "-"), WAYS[str(row["mode"] or "")]])
    console.out_table(["CLUSTER", "LOGIN", "CONNECTION", "NODE", "SHARED AS"], table)
