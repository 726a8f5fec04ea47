"""Addresses, ports, interfaces and threads, if the launcher does not set them."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

from serried.base.hosts import interface_of
from serried.train import group
from serried.train.errors import StartError
from serried.train.identities import Identity, threads

pytestmark = pytest.mark.torch

TWO_NODES = Identity(3, 4, 1, 2, 1, "slurm", launch="77.0", hosts="gpu-a[1-2]-n[001-004]")
ONE_NODE = replace(TWO_NODES, local_world_size=4)


def test_the_address_of_rank_0_comes_from_the_launcher_unless_it_is_a_loopback_and_there_are_several_nodes():
    for host in ("localhost", "127.0.0.1", "127.0.1.1", "::1"):
        with pytest.raises(StartError, match="is a loopback address"):
            group.given(TWO_NODES, {"MASTER_ADDR": host, "MASTER_PORT": "29500"})
    assert group.given(ONE_NODE, {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}) == ("localhost", 29500)
    assert group.given(TWO_NODES, {"MASTER_ADDR": "n1"}) == ("n1", next(group.ports(TWO_NODES)))
    assert group.given(TWO_NODES, {"MASTER_PORT": "29500"}) is None


def test_ports_are_the_same_on_every_rank_others_for_another_launch_and_none_of_outgoing_connections():
    ports = list(group.ports(TWO_NODES))
    assert ports == list(group.ports(replace(TWO_NODES, rank=0, local_rank=0, node_rank=0)))
    assert ports[0] != next(group.ports(replace(TWO_NODES, launch="78.0")))
    assert len(set(ports)) == len(ports) == 20
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert [port for port in ports if low <= port <= high] == []


def test_rank_0_serves_on_the_loopback_of_one_node_and_warns_if_it_has_no_other_address(monkeypatch):
    assert group.own_address(ONE_NODE) == "127.0.0.1"
    monkeypatch.setattr("serried.base.hosts.resolve", lambda host: ["127.0.1.1"])  # noqa: ARG005
    monkeypatch.setattr("serried.base.hosts.route_to", lambda host: None)  # noqa: ARG005
    with pytest.warns(UserWarning, match="has only loopback addresses, so other nodes cannot reach rank 0"):
        assert group.own_address(TWO_NODES) == "127.0.0.1"


def test_gloo_gets_an_interface_only_if_the_hosts_name_leads_to_a_loopback(monkeypatch):
    monkeypatch.setattr("serried.train.group.resolve", lambda host: ["127.0.1.1"])  # noqa: ARG005
    monkeypatch.setattr("serried.train.group.route_to", lambda host: "10.0.0.7")  # noqa: ARG005
    monkeypatch.setattr("serried.train.group.interface_of", {"10.0.0.7": "ib0"}.get)
    assert group.gloo_interface(TWO_NODES, "10.0.0.1", {}) == "ib0"
    assert group.gloo_interface(TWO_NODES, "10.0.0.1", {"GLOO_SOCKET_IFNAME": "eth1"}) is None
    assert group.gloo_interface(ONE_NODE, "127.0.0.1", {}) is None
    monkeypatch.setattr("serried.train.group.resolve", lambda host: ["10.0.0.7"])  # noqa: ARG005
    assert group.gloo_interface(TWO_NODES, "10.0.0.1", {}) is None


@pytest.mark.skipif("lo" not in dict(map(reversed, socket.if_nameindex())), reason="needs an interface called lo")
def test_an_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"


def test_threads_are_this_ranks_share_of_the_nodes_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)  # noqa: ARG005
    by_hand = replace(ONE_NODE, source="generic")
    assert threads(by_hand, {}) == 2
    assert threads(by_hand, {"OMP_NUM_THREADS": "3"}) is None
    assert threads(ONE_NODE, {"SLURM_CPUS_PER_TASK": "6"}) == 6
    assert threads(Identity(), {}) is None


def test_the_first_host_counts_only_if_this_node_can_resolve_its_name():
    assert group.first_host(replace(TWO_NODES, hosts="nowhere.invalid,n2")) is None
    assert group.first_host(replace(TWO_NODES, hosts="localhost,n2")) == "localhost"
