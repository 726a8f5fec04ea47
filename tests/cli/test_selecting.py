from __future__ import annotations

import click

from serried.cli import run_view


def test_completion_offers_ids_with_their_names_and_last(make):
    make("k3f9q2", name="digits\x1b[2J")
    make("k3zzzz", name="other")
    make("abcdef").record.directory.plan.write_text("torn")

    def offered(text):
        parameter = click.Argument(["run"])
        items = run_view.complete_runs(click.Context(click.Command("show")), parameter, text)
        return sorted((item.value, item.help) for item in items)

    assert offered("k3") == [("k3f9q2", r"digits\x1b[2J"), ("k3zzzz", "other")]
    assert offered("l") == [("last", "the newest run")]
    assert len(offered("")) == 3


def test_a_name_that_several_runs_bear_is_said_to_mean_the_newest(serried, make):
    make("aaaaaa", name="digits").ending()
    make("bbbbbb", name="digits").ending()
    done = serried("show", "digits")
    assert done.err.startswith("note: 2 runs are named `digits`; this is the newest\n")


def test_the_same_run_named_twice_is_one(serried, make):
    make("k3f9q2").ending()
    assert serried("wait", "k3f9q2", "last", "train").err == "k3f9q2 train COMPLETED after 10m00s\n"
