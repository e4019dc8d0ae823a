"""Render a sharding as HTML for notebooks: its text, and a table of the devices of each part."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Limit on the rows and on the columns of the table.
_MOST = 32


class ShardingLike(Protocol):
    """The attributes of a sharding that are rendered."""

    @property
    def kind(self) -> str:
        """One of the seven kinds."""

    @property
    def device_count(self) -> int | None:
        """Number of devices, if known."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of parts along each dimension."""

    @property
    def devices(self) -> NDArray[np.int64] | None:
        """The device of each part."""


def sharding_html(sharding: ShardingLike) -> str:
    """Return the HTML for a notebook: a table of the parts with their devices.

    Rows are parts along the first partitioned dimension; columns are parts along all others.
    """
    count = sharding.device_count
    words = sharding.kind if count is None else f"{sharding.kind}, {count} device{'s' * (count != 1)}"
    head = f"<div><code>{escape(str(sharding))}</code>, {words}</div>"
    if sharding.devices is None or sharding.kind != "tiled":
        return head
    parts = sharding.parts
    divided = [dimension for dimension, number in enumerate(parts) if number > 1]
    rows = parts[divided[0]] if divided else 1
    devices = sharding.devices.reshape(rows, int(np.prod(parts)) // rows, -1)
    lines = [_line(f"part {row} of dimension {divided[0]}" if divided else "", devices[row]) for row in range(rows)]
    others = " and ".join(f"dimension {dimension} ({parts[dimension]})" for dimension in divided[1:])
    note = f"<div>columns: parts of {others}</div>" if others else ""
    cut = f"<div>{rows - _MOST} more rows</div>" if rows > _MOST else ""
    return f"{head}{note}<table>{''.join(lines[:_MOST])}</table>{cut}"


def _line(name: str, cells: NDArray[np.int64]) -> str:
    texts = [_devices_text(cell.tolist()) for cell in cells[:_MOST]]
    more = f"<td>… {len(cells) - _MOST} more</td>" if len(cells) > _MOST else ""
    return f"<tr><th>{name}</th>{''.join(f'<td>{text}</td>' for text in texts)}{more}</tr>"


def _devices_text(devices: Sequence[int]) -> str:
    """Return the first few devices, and their number if there are more."""
    shown = ", ".join(map(str, devices[:8]))
    return shown if len(devices) <= 8 else f"{shown}, … ({len(devices)})"
