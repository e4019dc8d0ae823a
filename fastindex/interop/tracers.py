"""Arrays that stand for others while a function is traced: JAX's tracers, and PyTorch's tensors without memory."""

from __future__ import annotations

import sys
from typing import Any

from fastindex.errors import UnsupportedError


def tracing_library(value: Any) -> str | None:
    """Return the library that traces `value`, "jax" or "torch"; None for arrays that have values.

    Examples
    --------
    >>> tracing_library([1, 2]) is None
    True
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        return "jax"
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if value.device.type == "meta":
        return "torch"
    if value.device.type not in ("cpu", "cuda"):
        return None
    try:
        value.data_ptr()
    except RuntimeError:
        # Tensors of torch.vmap, torch.func and torch.export.
        return "torch"
    return None


def has_tangent(value: Any) -> bool:
    """Whether PyTorch differentiates a tensor forwards: what is computed outside of it loses the tangent."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None


def require_values(value: Any) -> None:
    """Refuse arrays that only stand for others.

    Raises
    ------
    UnsupportedError
    """
    library = tracing_library(value)
    if library == "jax":
        raise UnsupportedError(
            "an array inside jax.jit, jax.grad or jax.vmap is a tracer and has no values: call fastindex outside of "
            "the traced function, or by jax.pure_callback; rearrange takes tracers"
        )
    if library == "torch":
        raise UnsupportedError(
            "a tensor on meta, or inside torch.vmap, torch.func or torch.export, has no values: call fastindex outside "
            "of the traced function; rearrange takes such tensors"
        )
