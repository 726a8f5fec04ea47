from __future__ import annotations

from serried.base.text import expand_hosts, fold_hosts
from tables import for_each


@for_each(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[008-010],x", ["n008", "n009", "n010", "x"]),
        ("gpu-a[1-2]-n[01-02]", ["gpu-a1-n01", "gpu-a1-n02", "gpu-a2-n01", "gpu-a2-n02"]),
        ("n[1,3-4,7].site.org", ["n1.site.org", "n3.site.org", "n4.site.org", "n7.site.org"]),
    ],
)
def test_a_compact_host_list_names_its_hosts(text, hosts):
    assert expand_hosts(text) == hosts


@for_each(
    ("hosts", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n3", "n1", "n2"], "n3,n[1-2]"),
        (["n008", "n009", "n010", "x"], "n[008-010],x"),
        (["n9", "n10", "n011"], "n[9-10],n011"),
        (["a1-n1.site2.org", "a1-n2.site2.org", "a1-n2.other"], "a1-n[1-2].site2.org,a1-n2.other"),
        (["n1", "n1", "12", "13"], "n1,n1,[12-13]"),
        ([f"gpu{number}" for number in range(4096)], "gpu[0-4095]"),
    ],
)
def test_hosts_with_consecutive_numbers_become_ranges(hosts, text):
    assert fold_hosts(hosts) == text
    assert expand_hosts(text) == hosts
