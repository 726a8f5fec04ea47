"""Job names carry the token by which a lost submission is found."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from serried.schedulers.interface import job_name, names_token
from tables import for_each


@for_each(
    ("name", "expected"),
    [
        ("train", "train-k3f9q2-1"),
        ("a b$(id)", "a-b-id-k3f9q2-1"),
        ("-rf", "rf-k3f9q2-1"),
        ("é☃", "serried-k3f9q2-1"),
        ("", "serried-k3f9q2-1"),
        ("x\ny", "x-y-k3f9q2-1"),
        ("n" * 300, "n" * 55 + "-k3f9q2-1"),
    ],
)
def test_a_name_becomes_harmless_and_keeps_what_it_can(name, expected):
    assert job_name(name, "k3f9q2-1") == expected


@given(st.text())
def test_every_name_is_one_that_slurm_takes_and_gives_its_token_back(name):
    made = job_name(name, "k3f9q2-1")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", made)
    assert names_token(made, "k3f9q2-1")


def test_a_token_is_not_mistaken_for_a_longer_one():
    assert not names_token("train-k3f9q2-11", "k3f9q2-1")
    assert not names_token("train-zk3f9q2-1", "k3f9q2-1")
