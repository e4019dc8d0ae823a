"""Runs the commands of `fastindex` in the process that runs the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click.testing

from fastindex.cli.commands import main
from fastindex.jobs.layout_jobs import memory_limit


def run_command(arguments: Sequence[str], **options: Any) -> click.testing.Result:
    """Run a command; without --max-memory it may take 1 GiB more than the tests before it have left in memory.

    Tables are as wide as in a file, whatever COLUMNS is here.
    """
    limit = {"max_memory": str(memory_limit(None))}
    limits = dict.fromkeys(("pack", "unpack", "relayout", "repack"), limit)
    runner = click.testing.CliRunner(env={"COLUMNS": None})
    return runner.invoke(main, arguments, default_map=limits, **options)
