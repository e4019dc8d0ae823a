"""A reshard plan as HTML for notebooks: its description, and a table of the bytes sent between devices."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

#: Maximum number of devices in the table.
_MOST = 32


def reshard_html(description: str, between: NDArray[np.int64]) -> str:
    """Return the HTML for a reshard plan; `between` is the (source, target) matrix of bytes.

    Cells with more bytes are a deeper blue; bytes that stay on their device are italic.

    Examples
    --------
    >>> reshard_html("8 bytes move", np.array([[8, 8], [0, 8]]))[:21]
    '<pre>8 bytes move</pr'
    """
    shown = between[:_MOST, :_MOST]
    most = max(1, int(shown.max(initial=0)))
    head = "".join(f"<th>to {target}</th>" for target in range(shown.shape[1]))
    lines = [f"<tr><th>bytes</th>{head}</tr>"]
    for source, row in enumerate(shown.tolist()):
        cells = "".join(_cell(nbytes, most, source == target) for target, nbytes in enumerate(row))
        lines.append(f"<tr><th>from {source}</th>{cells}</tr>")
    counts = f" of {between.shape[0]} by {between.shape[1]}"
    cut = f"<div>the first {_MOST}{counts} devices</div>" if max(between.shape) > _MOST else ""
    return f"<pre>{escape(description)}</pre><table>{''.join(lines)}</table>{cut}"


def _cell(nbytes: int, most: int, stays: bool) -> str:
    if not nbytes:
        return "<td></td>"
    text = f"<i>{nbytes:,}</i>" if stays else f"{nbytes:,}"
    # Half transparent, so that text stays readable on light and dark backgrounds.
    return f'<td style="background:rgba(0,114,178,{0.1 + 0.4 * nbytes / most:.2f})">{text}</td>'
