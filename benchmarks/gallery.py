"""Make the pictures and the report of the README's gallery: ``python benchmarks/gallery.py``."""

from __future__ import annotations

from pathlib import Path

import fastindex as fi

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "gallery"
MODULE = ROOT / "tests" / "data" / "hlo" / "nearest_neighbours_v5e.txt"

#: The two figures of XLA's tiled layout document, and the layout of a bfloat16 matrix on a TPU.
SHAPES = {
    "tiles.svg": "f32[3,5]{1,0:T(2,2)}",
    "tiles_in_tiles.svg": "f32[4,8]{1,0:T(2,4)(2,1)}",
    "tpu_bfloat16.svg": "bf16[1024,1000]{1,0:T(8,128)(2,1)}",
}


def gallery() -> dict[str, str]:
    """Return the files by name."""
    files = {name: fi.draw(text).svg() for name, text in SHAPES.items()}
    files["report.txt"] = fi.hlo.report(MODULE).text(top=4, width=100) + "\n"
    return files


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in gallery().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
        print(f"{FOLDER / name}: {len(content.encode())} bytes")


if __name__ == "__main__":
    main()
