"""Give up what root may do whatever the modes of files say, but not the right to read the checkout."""

from __future__ import annotations

import ctypes
import os

# capabilities(7), linux/capability.h.
_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


def obey_modes() -> None:
    """Give up the two capabilities of this process, and of its children, that modes mean nothing to."""
    if os.geteuid() != 0:
        return
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Effective, permitted and inheritable ones, the first 32 and the others.
    sets = (ctypes.c_uint32 * 6)()
    for step in ("capget", "capset"):
        if getattr(library, step)(header, sets) != 0:
            raise OSError(ctypes.get_errno(), f"{step} failed")
        for place in range(3):
            sets[place] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
