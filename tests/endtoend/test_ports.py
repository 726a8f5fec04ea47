"""Jobs that share a node, and with it its ports, keep out of each other's way."""

from __future__ import annotations

import sys

MEET = """\
import os, socket, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(place)
    door.listen()
    other, _ = door.accept()
    assert other.recv(100).decode() == os.environ["SERRIED_TASK"]
else:
    deadline = time.monotonic() + 120
    while True:
        try:
            other = socket.create_connection(place, 5)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    other.sendall(os.environ["SERRIED_TASK"].encode())
"""


def test_two_at_once_meet_their_own_ranks_ten_times_in_a_row(place):
    (place.project / "meet.py").write_text(MEET)

    run = place.submit(
        "--ranks", "2", "--cpus", "1", "--array", "0-19", "--parallel", "2", "--", sys.executable, "meet.py"
    )

    status, end = place.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), place.serried("why", run).stdout
