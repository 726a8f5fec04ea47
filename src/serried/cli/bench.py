"""`serried bench`: the group. The module of a subcommand is imported on demand."""

from __future__ import annotations

import importlib

import click

from serried.cli import GroupWithHelp

SUBCOMMANDS = {
    "scaling": "Measure a training on more and more ranks.",
    "continue": "Submit the points that a bench still lacks.",
    "show": "Show a bench as a table, picture, CSV or JSON.",
}
"""Each is `command` in a module of this room: `bench_` and its name, with `_` for `-`."""


class BenchGroup(GroupWithHelp):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in SUBCOMMANDS:
            return None
        found: click.Command = importlib.import_module(f"serried.cli.bench_{cmd_name.replace('-', '_')}").command
        found.help = (found.help or "").replace("\\b\n", "\b\n")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=BenchGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Measure a training on more and more ranks; without a command, list the benches."""
    if ctx.invoked_subcommand is None:
        from serried.cli import bench_show

        bench_show.list_benches(as_json=as_json)
