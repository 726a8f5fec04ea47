"""The role `node`: enters the job's setup, calls the head, and runs the node's agent."""

from __future__ import annotations

import os
import socket
import sys
from typing import List

from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.comms import env_file, rendezvous
from serried.agent.node import setup
from serried.agent.node.node import Node
from serried.agent.ranks import tensorflow
from serried.agent.stage_in.node_side import check_required_paths
from serried.protocol import addresses, names

JOIN_SECONDS = 60.0


def main(arguments: List[str]) -> int:
    """`node [--node-variable NAME] [--environment FILE --own PREFIX]`: the environment says the rest."""
    options = dict(zip(arguments[::2], arguments[1::2]))  # noqa: B905 - `strict` is 3.10's
    variables = options.get("--node-variable", "").split(",")
    index = int(next(filter(None, map(os.environ.get, variables)), 0))
    if "--environment" in options:
        env_file.load(options.pop("--environment"), options.pop("--own", ""))
    element = os.environ.get(names.ELEMENT)
    work = Attempt.load(run_directory(), int(element) if element else None, int(os.environ[names.ATTEMPT]))
    problem = setup.enter(work, [word for option in options.items() for word in option]) or check_required_paths(
        work.plan
    )
    set_umask(work)
    key = bytes.fromhex(os.environ.pop(names.KEY))
    sockets = tensorflow.hold_ports(work)
    greeting = {"node": index, "host": socket.gethostname(), "version": sys.version.split()[0], "problem": problem}
    greeting["ports"] = [port.getsockname()[1] for port in sockets]
    try:
        channel, master = rendezvous.connect(os.environ[names.HEAD], key, greeting, JOIN_SECONDS)
    except OSError as error:
        print(f"serried: node {index} ({socket.gethostname()}) cannot reach the head agent: {error}", file=sys.stderr)
        return 1
    Node(work, index, key, channel, master if work.nodes > 1 else addresses.LOOPBACK).run()
    return 0
