"""Model weights: quantised formats, and whole checkpoints laid out for a device.

`repack`, `discover` and `check` take buffers; `pack_checkpoint`, `open_checkpoint` and
`convert_checkpoint` take files.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` declares them for type checkers.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.weights.discovery": ("Discovery", "discover"),
        "fastindex.weights.gathers": ("GatherPlan",),
        "fastindex.weights.repack_plans": ("RepackPlan",),
        "fastindex.weights.repacking": ("formats", "layout_of", "repack"),
        "fastindex.weights.wrong_slots": ("WrongSlot", "check"),
        "fastindex.weights.checkpoints": ("Checkpoint", "open_checkpoint"),
        "fastindex.weights.packing": ("pack_checkpoint",),
        "fastindex.weights.converting": ("ConvertedCheckpoint", "convert_checkpoint"),
    },
)
