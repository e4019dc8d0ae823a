"""Arrays of other libraries as plain data: tracers, arrays in host memory, strided descriptions, JAX's layouts.

Strides do not always determine the order of the dimensions: for dimensions of size 1 and for empty arrays, the order
closest to the default is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.core.element_types import ElementType
from fastindex.core.layout import Layout
from fastindex.core.tiles import COMBINE
from fastindex.errors import ArgumentTypeError, UnsupportedError


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
    """Whether a PyTorch tensor has a forward-mode tangent, which computation outside of PyTorch loses."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None


def require_values(value: Any) -> None:
    """Raise an error for tracers and other arrays without values.

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
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array) and value.is_deleted():
        raise UnsupportedError(
            f"the JAX array {value.dtype}{list(value.shape)} has been deleted, as arguments that a function donates "
            "are: copy it before that call"
        )


#: DLPack's device type for host memory.
_CPU = 1


def host_array(value: Any) -> NDArray[Any]:
    """Return an array, a nested sequence or another library's array as a NumPy array.

    PyTorch tensors and objects with ``__array__``, ``__array_interface__`` or only DLPack are supported.

    Raises
    ------
    UnsupportedError
        The array is on a device, has masked elements, has no values because a function is traced, or cannot be
        converted to a NumPy array.

    Examples
    --------
    >>> class OnlyDlpack:
    ...     def __dlpack__(self, **options):
    ...         return np.zeros(3).__dlpack__(**options)
    ...     def __dlpack_device__(self):
    ...         return np.zeros(3).__dlpack_device__()
    >>> host_array(OnlyDlpack()).shape
    (3,)
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray) and masked.is_masked(value):
        raise UnsupportedError("the array has masked elements, which have no values; fill them with array.filled(...)")
    require_values(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_array(torch, value)
    if hasattr(value, "__cuda_array_interface__"):
        raise UnsupportedError(f"the {type(value).__name__} is on a CUDA device; move it to the host")
    known = any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__buffer__"))
    if known or not hasattr(value, "__dlpack__"):
        try:
            return np.asarray(value)
        except (ValueError, NotImplementedError) as error:
            raise ArgumentTypeError(f"NumPy cannot make an array of this {type(value).__name__}: {error}") from None
    device = value.__dlpack_device__()[0]
    if int(device) != _CPU:
        raise UnsupportedError(
            f"the {type(value).__name__} is on a device (DLPack type {int(device)}); move it to the host"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise UnsupportedError(f"NumPy cannot convert this {type(value).__name__} through DLPack: {error}") from error


def host_target(out: Any) -> NDArray[Any]:
    """Return the caller's array to write to as a NumPy array of its memory; PyTorch counts the tensor as changed.

    Raises
    ------
    ArgumentTypeError, UnsupportedError
        As `host_array`; or the conversion makes a copy.
    """
    if isinstance(out, np.ndarray):
        return out
    target = host_array(out)
    if target.size and not np.may_share_memory(target, host_array(out)):
        raise ArgumentTypeError(f"out must be an array that can be written in place, got {type(out).__name__}")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        torch.autograd.graph.increment_version(out)
    return target


def _torch_array(torch: Any, tensor: Any) -> NDArray[Any]:
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {tensor.device}; move it to the host with .cpu()")
    plain = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat16", "float8_")):
        try:
            return np.asarray(plain.numpy())
        except (RuntimeError, TypeError) as error:
            if tensor.layout is not torch.strided:
                instead = "a tensor that is not strided has no place for each element: call its to_dense()"
            elif tensor.is_quantized:
                instead = "pass the codes, tensor.int_repr()"
            else:
                instead = "pass its bytes, tensor.view(torch.uint8)"
            raise UnsupportedError(f"NumPy has no array for this tensor of {tensor.dtype}; {instead}") from error
    # PyTorch cannot pass these types to NumPy, only integers of the same width.
    import ml_dtypes

    integers = plain.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
    return np.asarray(integers).view(getattr(ml_dtypes, name))


class StridedArray(NamedTuple):
    """The description of a strided array; `dtype_name` is the name of its dtype in its own library."""

    dtype_name: str
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int


def read_strided(array: Any) -> StridedArray:
    """Describe a NumPy or CuPy array, or an object with an array interface, ``__dlpack__`` on the CPU or ``__array__``.

    Raises
    ------
    UnsupportedError
        The byte order is not native.
    ArgumentTypeError
        `array` is not an array.

    Examples
    --------
    >>> import numpy as np
    >>> read_strided(np.zeros((3, 5), np.float32))
    StridedArray(dtype_name='float32', sizes=(3, 5), strides_bytes=(20, 4), element_bytes=4)
    """
    if isinstance(array, np.ndarray | np.generic):
        view = np.asarray(array)
        return _checked(view.dtype, view.shape, view.strides)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        described = getattr(array, name, None)
        if isinstance(described, dict):
            dtype = np.dtype(getattr(array, "dtype", described["typestr"]))
            return _checked(dtype, tuple(described["shape"]), described.get("strides"))
    if hasattr(array, "__dlpack__") or hasattr(array, "__array__"):
        return read_strided(host_array(array))
    raise ArgumentTypeError(f"from_numpy takes an array, got {type(array).__name__}")


def _checked(dtype: np.dtype[Any], sizes: tuple[int, ...], strides_bytes: Sequence[int] | None) -> StridedArray:
    if not dtype.isnative:
        raise UnsupportedError(
            f"the byte order of {dtype!r} is not native; convert with astype(dtype.newbyteorder('='))"
        )
    width = dtype.itemsize
    strides = strides_bytes or [width * math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    return StridedArray(dtype.name, sizes, tuple(strides), width)


def read_torch(tensor: Any) -> StridedArray:
    """Describe a PyTorch tensor, in any memory format and on any device.

    Raises
    ------
    UnsupportedError
        The tensor is not strided, or is a lazy conjugate or negative.

    Examples
    --------
    With PyTorch installed::

        read_torch(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)).strides_bytes
        (240, 4, 60, 12)
    """
    if not all(hasattr(tensor, name) for name in ("layout", "is_quantized", "element_size")):
        raise ArgumentTypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedError(f"only strided tensors have an XLA layout, not {tensor.layout} {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("the tensor is a lazy conjugate or negative; call resolve_conj() or resolve_neg()")
    width = tensor.element_size()
    strides = tuple([stride * width for stride in tensor.stride()])
    return StridedArray(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), strides, width)


def minor_to_major_of(array: StridedArray, element_type: str) -> tuple[int, ...] | None:
    """Return the order of the dimensions of an array, most minor first; None if it has no elements.

    Parameters
    ----------
    array : StridedArray
    element_type : str
        XLA's name of the element type, for error messages.

    Raises
    ------
    UnsupportedError
        No layout has these strides.

    Examples
    --------
    >>> minor_to_major_of(StridedArray("float32", (2, 3, 4), (48, 4, 12), 4), "f32")
    (1, 2, 0)
    """
    sizes, strides = array.sizes, array.strides_bytes
    what = f"{element_type}[{','.join(map(str, sizes))}] with byte strides {strides}"
    if 0 in sizes:
        return None
    longer = [d for d in range(len(sizes)) if sizes[d] > 1]
    for d in longer:
        if strides[d] < 0:
            raise UnsupportedError(f"dimension {d} of {what} runs backwards, which no layout expresses; copy the array")
        if strides[d] == 0:
            raise UnsupportedError(f"dimension {d} of {what} is broadcast, which no layout expresses; copy the array")
    # Equal strides overlap, which is detected below.
    order = sorted(longer, key=lambda d: (strides[d], -d))
    expected = array.element_bytes
    for d in order:
        if strides[d] != expected:
            words = "overlaps its neighbours" if strides[d] < expected else "has gaps"
            raise UnsupportedError(
                f"dimension {d} of {what} {words}: its stride would have to be {expected}; copy the array, "
                "or give padded_dimensions yourself if the buffer is padded"
            )
        expected *= sizes[d]
    return _with_size_1(order, sizes)


def _with_size_1(order: list[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Insert the dimensions of size 1 into a minor-to-major order, each next to the dimension that follows it."""
    complete = list(order)
    for d in range(len(sizes) - 1, -1, -1):
        if sizes[d] == 1:
            complete.insert(complete.index(d + 1) + 1 if d + 1 < len(sizes) else 0, d)
    return tuple(complete)


class JaxLayout(NamedTuple):
    """The contents of a ``jax.experimental.layout.Layout``."""

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    #: 0 means the default of the element type: packed for sub-byte types.
    element_size_in_bits: int


def read_jax_layout(layout: Any) -> JaxLayout:
    """Return the contents of a ``jax.experimental.layout.Layout``, or of the one in a ``Format``.

    Raises
    ------
    UnsupportedError
        The compiler chooses the layout.

    Examples
    --------
    Any object with the attributes of JAX's class works:

    >>> from types import SimpleNamespace
    >>> like_jax = SimpleNamespace(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    >>> read_jax_layout(like_jax)
    JaxLayout(minor_to_major=(0, 1), tiles=((8, 128),), element_size_in_bits=0)
    """
    inner = getattr(layout, "layout", layout)
    if not hasattr(inner, "major_to_minor"):
        raise UnsupportedError(
            f"the layout is {inner!r}, so the compiler chooses it; take it from the array, or from input_formats or "
            "output_formats of the compiled program"
        )
    return JaxLayout(
        tuple(inner.major_to_minor)[::-1], tuple(map(tuple, inner.tiling or ())), inner.sub_byte_element_size_in_bits
    )


def read_jax_array(array: Any) -> tuple[Any, tuple[int, ...], JaxLayout]:
    """Return the dtype, sizes and layout of a ``jax.Array``, or of a ``jax.ShapeDtypeStruct`` with a format.

    Raises
    ------
    UnsupportedError
        The compiler chooses the layout, or the array is sharded: each shard has a separate buffer.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> layout = SimpleNamespace(major_to_minor=(1, 0), tiling=None, sub_byte_element_size_in_bits=0)
    >>> read_jax_array(SimpleNamespace(dtype="float32", shape=(3, 5), format=layout))
    ('float32', (3, 5), JaxLayout(minor_to_major=(0, 1), tiles=(), element_size_in_bits=0))
    """
    require_values(array)
    sizes = tuple(array.shape)
    sharding = getattr(array, "sharding", None)
    if sharding is not None and tuple(sharding.shard_shape(array.shape)) != sizes:
        raise UnsupportedError(
            "the array is sharded, and each shard has its own buffer: pass array.addressable_shards[0].data"
        )
    if not hasattr(array, "format"):
        raise ArgumentTypeError(
            f"expected a jax.Array, or a ShapeDtypeStruct with a format, got {type(array).__name__}"
        )
    return array.dtype, sizes, read_jax_layout(array.format)


def make_jax_layout(
    major_to_minor: Sequence[int], tiles: Sequence[Sequence[int]], sub_byte_element_size_in_bits: int
) -> Any:
    """Return a ``jax.experimental.layout.Layout``. Imports JAX.

    Examples
    --------
    With JAX installed::

        make_jax_layout((1, 0), ((8, 128),), 0)
        Layout(major_to_minor=(1, 0), tiling=((8, 128),), sub_byte_element_size_in_bits=0)
    """
    from jax.experimental import layout as jax_layout

    return jax_layout.Layout(tuple(major_to_minor), tuple(map(tuple, tiles)), sub_byte_element_size_in_bits)


def layout_from_jax(jax_layout: JaxLayout, element_type: ElementType) -> Layout:
    """Return the layout of an array of this element type in a JAX layout.

    Examples
    --------
    >>> str(layout_from_jax(JaxLayout((0, 1), ((8, 128),), 0), ElementType.of("s4")))
    '{0,1:T(8,128)E(4)}'
    >>> str(layout_from_jax(JaxLayout((0, 1), ((8, 128), (4, 1)), 0), ElementType.of("f6e2m3fn")))
    '{0,1:T(8,128)(4,1)}'
    """
    order, tiles, bits = jax_layout
    # XLA packs elements that share a byte evenly, in every buffer; the layouts of some JAX versions do not say so.
    packed = element_type.bits if element_type.is_sub_byte and 8 % element_type.bits == 0 else 0
    return Layout(order, tiles, element_size_in_bits=bits or packed)


def layout_to_jax(layout: Layout) -> Any:
    """Return a layout as a ``jax.experimental.layout.Layout``. Imports JAX.

    Raises
    ------
    UnsupportedError
        JAX's layouts cannot express an attribute of the layout.
    """
    lost = [
        (layout.padded_dimensions is not None, "padded_dimensions"),
        (layout.padding_value is not None, "padding_value"),
        (any(COMBINE in tile for tile in layout.tiles), "* in a tile"),
        (layout.tail_padding_alignment_in_elements != 1, "L"),
        (layout.element_size_in_bits not in (0, 1, 2, 4), "E"),
        (layout.memory_space != 0, "S"),
        (bool(layout.split_configs), "SC"),
        (layout.dynamic_shape_metadata_prefix_bytes != 0, "M"),
        (bool(layout.dimension_levels), "D"),
    ]
    for is_lost, name in lost:
        if is_lost:
            raise UnsupportedError(f"JAX's layouts cannot express {name}: {layout}")
    return make_jax_layout(layout.major_to_minor, layout.tiles, layout.element_size_in_bits)
