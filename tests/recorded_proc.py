"""A recorded /proc, /sys and tree of control groups, as files below a folder."""

from __future__ import annotations

from pathlib import Path

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    4000000 kB\n"
STAT = """cpu  30000 0 9000 80000 0 0 0 0 0 0
cpu0 1000 100 300 4000 50 20 30 0 0 0
cpu1 9000 100 300 4000 50 20 30 0 0 0
intr 12345 0 0
"""
DISKSTATS = """ 259       0 nvme0n1 100 0 2000 10 50 0 4000 10 0 20 30
 259       1 nvme0n1p1 90 0 1900 10 50 0 4000 10 0 20 30
   7       0 loop0 100 0 900 10 0 0 0 0 0 0 0
"""
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5000 10 0 0 0 0 0 0 5000 10 0 0 0 0 0 0
  eth0:1000 10 0 0 0 0 0 0 2000 10 0 0 0 0 0 0
   ib0: 700 10 0 0 0 0 0 0 800 10 0 0 0 0 0 0
"""


def add(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def proc(root: Path, membership: str) -> Path:
    return add(
        root, {"meminfo": MEMINFO, "stat": STAT, "diskstats": DISKSTATS, "net/dev": NET, "self/cgroup": membership}
    )


def system(root: Path) -> Path:
    """A disk and a loop device; an Ethernet card, and one of InfiniBand with its port's counters."""
    counters = "class/infiniband/mlx5_0/ports/1/counters"
    return add(
        root,
        {
            "block/nvme0n1/device/model": "disk",
            "block/loop0/size": "8",
            "class/net/lo/type": "772",
            "class/net/eth0/type": "1",
            "class/net/eth0/device/vendor": "0x1",
            "class/net/ib0/type": "32",
            "class/net/ib0/device/vendor": "0x2",
            f"{counters}/port_rcv_data": "1000",
            f"{counters}/port_xmit_data": "3000",
        },
    )
