"""The command `completion`: shell completion of commands, options and file names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Make a shell complete commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and file names.

    \b
    bash:  eval "$(fastindex completion bash)"                  in ~/.bashrc
    zsh:   eval "$(fastindex completion zsh)"                   in ~/.zshrc
    fish:  fastindex completion fish > ~/.config/fish/completions/fastindex.fish
    """
    chosen = get_completion_class(shell)
    assert chosen is not None
    click.echo(chosen(context.find_root().command, {}, "fastindex", "_FASTINDEX_COMPLETE").source())
