"""`serried completion`: the script that teaches a shell to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from serried.views import console


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    r"""Print the completion script for a shell.

    \b
    eval "$(serried completion bash)"                              in ~/.bashrc
    eval "$(serried completion zsh)"                               in ~/.zshrc
    serried completion fish > ~/.config/fish/completions/serried.fish
    """
    from serried.cli import serried

    completion = get_completion_class(shell)
    if completion is None:  # the choice above leaves only shells that click knows
        raise click.UsageError(f"no completion for {shell}")
    console.out(completion(serried, {}, "serried", "_SERRIED_COMPLETE").source())
