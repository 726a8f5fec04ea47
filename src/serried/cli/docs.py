"""`serried docs` and `completion`: the pages of the documentation, which a wheel has too, and completion scripts."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

import serried
from serried.base.errors import UsageError, did_you_mean
from serried.views import console


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
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


INSTALLED = "share/serried/docs"
"""Below an environment, or below the target of `pip install --target`."""


def pages(package: Path) -> dict[str, Path]:
    """The pages by name. `package` is the folder of an installation."""
    clone, *others = (package.parents[1] / "docs", *(above / INSTALLED for above in package.parents[:4]))
    folder = clone if (clone / "index.md").is_file() else next(filter(Path.is_dir, others), clone)
    return dict(sorted((path.stem, path) for path in folder.rglob("*.md")))


@click.command()
@click.argument("page", required=False)
def command(*, page: str | None) -> None:
    r"""Print a page of the documentation, or list the pages.

    \b
    serried docs
    serried docs launchers | less
    """
    known = pages(Path(serried.__file__).parent)
    if page is None:
        titles = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in known.items()}
        console.out_table(("PAGE", "TITLE"), [(name, title.removeprefix("# ")) for name, title in titles.items()])
        return
    name = Path(page).name.removesuffix(".md")
    if name not in known:
        raise UsageError(f"no page is called `{page}`", hint=did_you_mean(name, known) or "`serried docs` lists them")
    console.out(known[name].read_text(encoding="utf-8").rstrip("\n"))
