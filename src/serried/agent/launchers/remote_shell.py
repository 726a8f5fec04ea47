"""A remote shell for launchers that want one: `remote WHERE [-options] HOST COMMAND…`, called as ssh is.

It asks the agent of its own node, that one asks HOST's by way of the head, and what runs there is a child of that
agent, with that node's environment. No keys, no ports, no limits of a step; and as it belongs to the attempt, it ends
with it. There is no input, what it prints goes into that node's `launcher.log`, and its exit status comes back.
"""

from __future__ import annotations

import sys
from typing import List, Sequence, Tuple

from serried.agent.launchers import local_socket

WITH_VALUE = frozenset("-" + letter for letter in "BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh that take a value; none of them means anything here."""
FAILED = 255
"""What ssh exits with when it is not the command that has failed."""


def parse(arguments: Sequence[str]) -> Tuple[str, str]:
    """Host and command. ssh takes options after the host, too, and joins the words of the command by spaces."""
    host, rest = "", list(arguments)
    while rest and (rest[0].startswith("-") or not host):
        argument = rest.pop(0)
        if argument in WITH_VALUE:
            del rest[:1]
        elif not argument.startswith("-"):
            host = argument.rpartition("@")[2]
    return host, " ".join(rest)


def main(arguments: List[str]) -> int:
    """Waits for the command; a signal that ends this process ends the command too."""
    host, command = parse(arguments[1:])
    try:
        connection = local_socket.connect(arguments[0])
    except OSError as error:
        print(f"serried: no agent of this attempt answers: {error}", file=sys.stderr)
        return FAILED
    connection.send({"remote": host, "command": command})
    while True:
        messages = connection.receive()
        if messages is None:
            return FAILED
        for message in messages:
            if "refused" in message:
                print(f"serried: {message['refused']}", file=sys.stderr)
                return FAILED
            if "exited" in message:
                return int(message["exited"])
