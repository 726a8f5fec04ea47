"""The remote shell is called as ssh is, by programs that were written for ssh."""

from __future__ import annotations

from serried.agent.launchers.node_side import find_host
from serried.agent.launchers.programs import parse_ssh
from tables import for_each


@for_each(
    ("words", "host", "command"),
    [
        # As Open MPI, MPICH, Intel MPI, horovodrun and ssh's users write it.
        (["n1", " orted -mca", "ess", "env"], "n1", " orted -mca ess env"),
        (["-x", "n1", '"/opt/hydra_pmi_proxy"', "--rmk", "user"], "n1", '"/opt/hydra_pmi_proxy" --rmk user'),
        (["-q", "-x", "n1", "/opt/bin//hydra_bstrap_proxy", "--upstream-port", "1"], "n1",
         "/opt/bin//hydra_bstrap_proxy --upstream-port 1"),
        (["-o", "PasswordAuthentication=no", "n1", "-p", "22", "-o", "ConnectTimeout=10", "true"], "n1", "true"),
        (["-oBatchMode=yes", "ada@n1", "echo", "$HOME; exit 3"], "n1", "echo $HOME; exit 3"),
        (["n1"], "n1", ""),
    ],
)  # fmt: skip
def test_host_and_command_are_found_among_sshs_options(words, host, command):
    assert parse_ssh(words) == (host, command)


@for_each(
    ("host", "hosts", "index"),
    [
        ("n2", ["n1", "n2"], 1),
        ("n2.cluster.example.org", ["n1", "n2"], 1),
        ("n2", ["n1.cluster", "n2.cluster"], 1),
        ("n2.a", ["n2.a", "n2.b"], 0),
        ("n2", ["n2.a", "n2.b"], None),
        ("n3", ["n1", "n2"], None),
    ],
)
def test_a_node_is_known_by_its_short_name_too_where_that_is_one_nodes_alone(host, hosts, index):
    assert find_host(host, hosts) == index
