"""Arguments that several commands share."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {name: 1 << 10 * power for power, letter in enumerate("KMGT", 1) for name in (letter, f"{letter}IB")}

#: Input path, not checked here: the code that opens it reports what is wrong.
PATH = click.Path(path_type=str, readable=False)


class _OutPath(click.Path):
    """Output path: need not be readable; it is replaced by rename."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            self.fail("the output is a file, not standard output; ./- is a file called -", param, ctx)
        return super().convert(value, param, ctx)


#: Output path, for files and folders.
OUT_PATH = _OutPath(path_type=str, readable=False)
#: Whether to replace a read-only file, and the input.
FORCE = click.option("--force", is_flag=True, help="Replace an existing file even where it is read-only or the input.")
#: Where to compute.
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where to compute.")
#: Whether to print JSON.
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: Which casts are allowed.
CASTING = click.option(
    "--casting",
    type=click.Choice(["no", "equiv", "safe", "same_kind", "unsafe"]),
    default="same_kind",
    show_default=True,
    help="Which casts to other element types are allowed, by NumPy's rule.",
)


def integer(text: str) -> int:
    """Parse an integer; Python rejects thousands of digits, and some digits other than 0 to 9.

    Raises
    ------
    click.BadParameter

    Examples
    --------
    >>> integer("-12")
    -12
    """
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text[:40]!r} with its {len(text)} characters is not an integer of 64 bits"
        ) from None


def byte_size(text: str) -> int:
    """Read a number of bytes with a unit.

    Raises
    ------
    click.BadParameter
        Not a number above 0 with a unit.

    Examples
    --------
    >>> byte_size("1GiB"), byte_size("1.5 MB"), byte_size("4096")
    (1073741824, 1500000, 4096)
    """
    number = text.rstrip("BbIiKkMmGgTt ")
    unit = _UNITS.get(text[len(number) :].strip().upper(), 0)
    try:
        size = int(float(number) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r} is not a size; give bytes, or a number with KiB, MiB, GiB or TiB")
    return size


#: How much memory a job on files may use.
MAX_MEMORY = click.option(
    "--max-memory",
    type=byte_size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Memory limit of the process, this program included.",
)


def check_names(source: str, target: str, force: bool) -> None:
    """Raise an error for an output that would replace the input without --force."""
    if force:
        return
    with suppress(OSError):
        if os.path.samefile(source, target) and (os.path.isfile(source) or os.path.isdir(source)):
            raise click.UsageError(
                f"IN and OUT are the same file, {source!r}; give OUT another name, or --force to replace IN"
            )


def check_memory(max_memory: int) -> None:
    """Raise an error for a limit that does not hold the program itself."""
    from fastindex.moving.box_jobs import LEAST_MEMORY_BYTES

    if max_memory < LEAST_MEMORY_BYTES:
        raise click.UsageError(
            f"--max-memory: {max_memory} bytes are too few for the program itself; give at least "
            f"{LEAST_MEMORY_BYTES >> 20}MiB"
        )
