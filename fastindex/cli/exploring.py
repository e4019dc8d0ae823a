"""The command `explore`: a live, interactive page for any shape."""

from __future__ import annotations

from urllib.parse import urlencode

import click

import fastindex


@click.command(short_help="The same, live in the browser.")
@click.argument("shape", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to listen; any free port without it.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def explore(shape: str | None, port: int, browser: bool) -> None:
    """Serve a live page on this machine's loopback address: type a shape, see where its elements live.

    Ctrl-C ends it. It needs the extra: pip install 'fastindex[explore]'.
    """
    query = ""
    if shape is not None:
        query = "?" + urlencode({"shape": str(fastindex.Shape.parse(shape))})
    from fastindex.show.explorer.server import serve

    def announce(address: str) -> None:
        click.echo(f"{address}{query}")
        if browser:
            click.launch(f"{address}{query}")

    try:
        serve(port, announce)
    except ImportError as error:
        raise click.ClickException(f"{error}; pip install 'fastindex[explore]'") from None
