"""`python SCRIPT …`, forked where slow imports have been done already: `forked_python.py SOCKET SCRIPT …`.

An agent starts this process, signals it and waits for it. The forked one gets its signals, and dies with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SCRIPT = """\
import os, runpy, sys
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(address, *argv):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        where = {"environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109 - pathlib is slow
        request = {"code": SCRIPT, "argv": argv, "is_tied": True, **where}
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(connection.recv(64))
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        status = int(connection.recv(64))
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
