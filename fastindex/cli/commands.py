"""The command line: ``fastindex COMMAND``. Registers the commands, which are defined in separate modules."""

from __future__ import annotations

import click

import fastindex
from fastindex.cli.checkpoints import convert, verify
from fastindex.cli.completing import completion
from fastindex.cli.describing import info, show
from fastindex.cli.exploring import explore
from fastindex.cli.group import CommandLine
from fastindex.cli.indexing import index
from fastindex.cli.machine import demo, warmup
from fastindex.cli.moving import pack, relayout, unpack
from fastindex.cli.paging import paged
from fastindex.cli.repacking import repack
from fastindex.cli.reporting import copies, report
from fastindex.cli.sharding import shard


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fastindex.__version__, prog_name="fastindex")
def main() -> None:
    """Where the elements of an array live in memory under XLA's layouts.

    SHAPE is XLA's text of a shape and its layout, such as 'bf16[1024,1000]{1,0:T(8,128)(2,1)}'. Quote it for the shell.

    A file whose name ends in .npy is a NumPy file; any other is raw bytes.

    \b
    Examples:
      fastindex info 'f32[100000,3]{1,0:T(8,128)}'
      fastindex show 'f32[3,5]{1,0:T(2,2)}' --html layout.html
      fastindex index 'bf16[1024,1000]{1,0:T(8,128)(2,1)}' 9 130
      fastindex relayout in.raw out.raw --from 'f32[8,300]' --to 'f32[8,300]{1,0:T(8,128)}'
      fastindex report dump/
      fastindex copies dump/

    \b
    Results go to stdout, notices and progress to stderr, and only on a terminal.
    Exit status: 0 done, 1 failed with one line on stderr, 2 wrong usage, 130 interrupted.

    \b
    Environment:
      FASTINDEX_NUM_THREADS        threads to compute with
      FASTINDEX_SPIN_MICROSECONDS  how long they look out for more work before they sleep
      NUMBA_CACHE_DIR              where compiled kernels are kept
      COLUMNS                      how wide tables are
      NO_COLOR                     no colours
    """


_COMMANDS = (
    info,
    show,
    index,
    shard,
    pack,
    unpack,
    relayout,
    repack,
    convert,
    verify,
    paged,
    report,
    copies,
    explore,
    demo,
    warmup,
    completion,
)
for _command in _COMMANDS:
    main.add_command(_command)
