"""Handle functions for JAX: flatten, export, and compile them with layouts. JAX is imported on use."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fastindex.core.foreign_arrays import JaxLayout, make_jax_layout, read_jax_layout

#: Layout chosen by the compiler.
AUTO = "auto"
#: Requested layout of an argument or a result: a specific one, the compiler's choice, or JAX's default.
Wanted = JaxLayout | str | None
# : A named sharding as plain data: axis names, axis sizes, the axes that partition each dimension, and the memory kind
# (None for the device's own memory).
NamedSpec = tuple[tuple[str, ...], tuple[int, ...], tuple[Any, ...], str | None]

_ONE_DEVICE: NamedSpec = (("one",), (1,), (), None)


class CompiledProgram(NamedTuple):
    """A compiled program, as plain data.

    Attributes
    ----------
    text : str
        HLO text after optimizations.
    memory : dict of str to int
        Fields of ``memory_analysis()``.
    inputs, outputs : list of JaxLayout or None
        Layouts of the arguments and the results.
    """

    text: str
    memory: dict[str, int]
    inputs: list[JaxLayout | None]
    outputs: list[JaxLayout | None]


class FlatProgram(NamedTuple):
    """A function that takes arrays and returns a tuple of arrays, derived from any function that JAX can trace.

    Attributes
    ----------
    function : callable
    avals : list of jax.ShapeDtypeStruct
        Arguments of the flat function.
    paths : list of str
        Their names, such as ``params['q']``.
    owners : list of int
        For each flat argument, the number of the original argument that contains it.
    rebuild : callable
        Makes the original arguments, without the static ones, from a list with one item per flat argument.
    results : list of jax.ShapeDtypeStruct
    result_paths : list of str
    rebuild_result : callable
        Makes the original result from a list of flat results.
    """

    function: Callable[..., Any]
    avals: list[Any]
    paths: list[str]
    owners: list[int]
    rebuild: Callable[[Sequence[Any]], Any]
    results: list[Any]
    result_paths: list[str]
    rebuild_result: Callable[[Sequence[Any]], Any]


def flat_program(function: Callable[..., Any], arguments: Sequence[Any], static: Sequence[int]) -> FlatProgram:
    """Flatten a function for given arguments: arrays, array shapes, or containers of them."""
    import jax

    dynamic = [number for number in range(len(arguments)) if number not in static]
    given = tuple(jax.tree.map(_aval, arguments[number]) for number in dynamic)
    leaves, tree = jax.tree.flatten(given)
    names = _parameter_names(function, len(arguments))
    paths, owners = [], []
    for path, _ in jax.tree_util.tree_flatten_with_path(given)[0]:
        owner = dynamic[path[0].idx]
        owners.append(owner)
        paths.append(names[owner] + jax.tree_util.keystr(path[1:]))

    def whole(*leaves: Any) -> Any:
        values = list(arguments)
        for number, value in zip(dynamic, jax.tree.unflatten(tree, leaves), strict=True):
            values[number] = value
        return function(*values)

    result = jax.eval_shape(whole, *leaves)
    results, result_tree = jax.tree.flatten(result)
    result_paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(result)[0]]

    def flat(*leaves: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(whole(*leaves)))

    flat.__name__ = _name_of(function)
    return FlatProgram(
        flat, leaves, paths, owners, lambda items: jax.tree.unflatten(tree, items), results, result_paths,
        lambda items: jax.tree.unflatten(result_tree, items),
    )  # fmt: skip


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name under which code can call a function, or "function" if it has none, like a lambda or a partial.

    A wrapper such as ``jax.shard_map(f)`` has the name of the wrapped function; the name is used only if the module has
    the wrapper under it.
    """
    name = getattr(function, "__name__", "")
    if hasattr(function, "__wrapped__"):
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        if getattr(module, name, None) is not function:
            return "function"
    return name if name.isidentifier() else "function"


def _aval(value: Any) -> Any:
    import jax
    import numpy as np

    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        value = np.asarray(value)
    dtype = jax.dtypes.canonicalize_dtype(value.dtype) if isinstance(value, np.ndarray) else value.dtype
    return jax.ShapeDtypeStruct(value.shape, dtype)


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    names: list[str] = []
    try:
        parameters = inspect.signature(function).parameters.values()
        names += [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        # Some callables have no signature.
        pass
    return [names[number] if number < len(names) else f"args[{number}]" for number in range(count)]


def flat_shardings(shardings: Any, tree_of: Callable[[Sequence[Any]], Any], count: int) -> list[Any]:
    """Spread shardings, given for whole arguments or parts of them, over the leaves; None where none is given."""
    import jax

    if shardings is None:
        return [None] * count
    tree = tree_of(list(range(count)))
    spread: list[Any] = [None] * count

    def note(sharding: Any, part: Any) -> None:
        for number in jax.tree.leaves(part):
            spread[number] = sharding

    def is_leaf(item: Any) -> bool:
        return item is None or isinstance(item, jax.sharding.Sharding | jax.sharding.PartitionSpec)

    if is_leaf(shardings):
        note(shardings, tree)
    else:
        jax.tree.map(note, shardings, tree, is_leaf=is_leaf)
    return spread


def named_spec(sharding: Any) -> NamedSpec | None:
    """Return a named sharding, or one of a single device in another memory, as plain data; None for the default."""
    if sharding is None:
        return None
    kind = memory_kind(sharding)
    if not hasattr(sharding, "spec"):
        return (("one",), (1,), (), kind) if kind else None
    mesh = sharding.mesh
    names = tuple(map(str, mesh.axis_names))
    parts = tuple(part if part is None or isinstance(part, str) else tuple(part) for part in sharding.spec)
    return names, tuple(mesh.shape[name] for name in mesh.axis_names), parts, kind


def memory_kind(sharding: Any) -> str | None:
    """Return the memory kind that a sharding requests; None for the default of its devices."""
    kind: str | None = getattr(sharding, "memory_kind", None)
    try:
        # The default kind of a CPU is one that means host memory on a TPU.
        default = next(iter(sharding.device_set)).default_memory().kind
    except Exception:
        # Devices of an abstract mesh or a topology cannot be asked.
        default = "device"
    return None if kind in (None, default) else kind


def exported(program: FlatProgram) -> bytes:
    """Serialize a program for compilation for TPUs in another process."""
    import jax
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
    jitted = jax.jit(program.function, keep_unused=True)
    found = export.export(jitted, platforms=["tpu"], disabled_checks=checks)(*program.avals)
    return bytes(found.serialize())


def imported(serialized: bytes) -> tuple[Callable[..., Any], list[Any]]:
    """Deserialize a program from another process; return its function and arguments."""
    import jax
    from jax import export

    found = export.deserialize(bytearray(serialized))

    def program(*leaves: Any) -> Any:
        return found.call(*leaves)

    return program, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in found.in_avals]


def topology_shardings(topology: str, specs: Sequence[NamedSpec | None]) -> list[Any]:
    """Return shardings over the devices of a topology; on its first device without specs.

    Raises
    ------
    ValueError
        The topology has fewer devices than a mesh.
    """
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = topologies.get_topology_desc(topology, "tpu").devices
    known = [spec for spec in specs if spec is not None]
    # Single-device specs in another memory are placed on the mesh of the other specs.
    names, sizes, _, _ = max(known, key=lambda spec: len(spec[2]) > 0 or spec[0] != ("one",), default=_ONE_DEVICE)
    count = int(np.prod(sizes))
    if count > len(devices):
        raise ValueError(f"{topology} has {len(devices)} devices, and the mesh {count}")
    mesh = Mesh(np.array(devices[:count]).reshape(sizes), names)
    return [
        NamedSharding(mesh, PartitionSpec(*spec[2]), memory_kind=spec[3])
        for spec in (each or _ONE_DEVICE for each in specs)
    ]


def compile_with_layouts(
    function: Callable[..., Any],
    avals: Sequence[Any],
    layouts: tuple[Sequence[Wanted], Sequence[Wanted]],
    shardings: tuple[Sequence[Any], Sequence[Any]],
    donated: Sequence[int],
) -> CompiledProgram:
    """Compile a flat function with layouts for its arguments and its results."""
    import jax

    inputs, outputs = (
        tuple(jax_format(wanted, sharding) for wanted, sharding in zip(*sides, strict=True))
        for sides in zip(layouts, shardings, strict=True)
    )
    jitted = jax.jit(
        function, in_shardings=inputs, out_shardings=outputs, donate_argnums=tuple(donated), keep_unused=True
    )
    compiled = jitted.lower(*avals).compile()
    analysis = compiled.memory_analysis()
    names = [name for name in dir(analysis) if name.endswith("_bytes")]
    return CompiledProgram(
        compiled.as_text() or "",
        {name: int(getattr(analysis, name)) for name in names},
        [_plain(item) for item in jax.tree.leaves(compiled.input_formats[0], is_leaf=_is_format)],
        [_plain(item) for item in jax.tree.leaves(compiled.output_formats, is_leaf=_is_format)],
    )


def _is_format(item: Any) -> bool:
    return hasattr(item, "layout")


def _plain(item: Any) -> JaxLayout | None:
    return read_jax_layout(item) if hasattr(item.layout, "major_to_minor") else None


def jax_format(wanted: Wanted, sharding: Any) -> Any:
    """Return what `jax.jit` takes for a layout and a sharding: a ``Format``, or the sharding if there is no layout."""
    import jax
    from jax.experimental.layout import Format, Layout

    if wanted is None:
        return sharding
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if isinstance(wanted, str):
        return Format(Layout.AUTO, sharding)
    order = wanted.minor_to_major[::-1]
    return Format(make_jax_layout(order, wanted.tiles, wanted.element_size_in_bits), sharding)


class Loop(NamedTuple):
    """A loop of a program: types and sizes of the values in its carry."""

    carries: list[tuple[str, tuple[int, ...]]]


def loops_of(program: FlatProgram) -> list[Loop]:
    """Return the loops of a program, numbered as in `with_constraints`."""
    import jax

    found: list[Loop] = []
    rewritten = _Rewriter({}, found)
    jax.make_jaxpr(rewritten.run(jax.make_jaxpr(program.function)(*program.avals)))(*program.avals)
    return found


def with_constraints(program: FlatProgram, constraints: Mapping[tuple[int, int], Sequence[int]]) -> FlatProgram:
    """Return a program with ``with_layout_constraint`` applied to loop carries.

    Parameters
    ----------
    constraints : mapping of (int, int) to sequence of int
        Dimension order, most major first, by the number of the loop and of the element of its carry. The constraint is
        applied at the start of the loop body.
    """
    import jax

    closed = jax.make_jaxpr(program.function)(*program.avals)
    rewritten = _Rewriter(constraints, []).run(closed)
    rewritten.__name__ = program.function.__name__
    return program._replace(function=rewritten)


def _lines_of(equation: Any) -> contextlib.AbstractContextManager[Any]:
    """Keep an equation's source lines for whatever is traced in this context."""
    try:
        from jax._src import source_info_util
    except ImportError:
        return contextlib.nullcontext()
    source = equation.source_info
    names = source_info_util.current_name_stack() + source.name_stack
    context: contextlib.AbstractContextManager[Any] = source_info_util.user_context(source.traceback, name_stack=names)
    return context


class _Rewriter:
    """Re-evaluates a program, with constraints at the start of loop bodies."""

    def __init__(self, constraints: Mapping[tuple[int, int], Sequence[int]], loops: list[Loop]) -> None:
        self._constraints = constraints
        self._loops = loops

    def run(self, closed: Any) -> Callable[..., Any]:
        def function(*leaves: Any) -> tuple[Any, ...]:
            # Tracing may run this more than once.
            del self._loops[:]
            return tuple(self._evaluate(closed, leaves))

        return function

    def _evaluate(self, closed: Any, values: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *values), strict=True))
        for equation in jaxpr.eqns:
            given = [item.val if hasattr(item, "val") else known[item] for item in equation.invars]
            results = self._apply(equation, given)
            known.update(zip(equation.outvars, results, strict=True))
        return [item.val if hasattr(item, "val") else known[item] for item in jaxpr.outvars]

    def _apply(self, equation: Any, given: list[Any]) -> Sequence[Any]:
        primitive, parameters = equation.primitive, equation.params
        if primitive.name == "scan":
            first, carried = _carried_by_scan(parameters)
            parameters = self._loop(parameters, "jaxpr", first, first + carried)
        elif primitive.name == "while":
            first = parameters["body_nconsts"]
            parameters = self._loop(parameters, "body_jaxpr", first, len(parameters["body_jaxpr"].in_avals))
        elif primitive.name in ("jit", "pjit"):
            return self._evaluate(parameters["jaxpr"], given)
        bound = primitive.get_bind_params(parameters)
        # Older versions of JAX return the functions separately.
        functions, bound = bound if isinstance(bound, tuple) else ((), bound)
        with _lines_of(equation), equation.ctx.manager:
            results = primitive.bind(*functions, *given, **bound)
        return results if primitive.multiple_results else [results]

    def _loop(self, parameters: dict[str, Any], name: str, first: int, last: int) -> dict[str, Any]:
        import jax
        from jax.experimental.layout import Layout, with_layout_constraint

        body = parameters[name]
        number = len(self._loops)
        avals = body.in_avals
        self._loops.append(Loop([(str(aval.dtype), tuple(aval.shape)) for aval in avals[first:last]]))

        def constrained(*values: Any) -> list[Any]:
            taken = list(values)
            for place in range(first, last):
                order = self._constraints.get((number, place - first))
                if order is not None:
                    taken[place] = with_layout_constraint(taken[place], Layout(tuple(order)))
            return self._evaluate(body, taken)

        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
        return {**parameters, name: jax.make_jaxpr(constrained)(*shapes)}


def _carried_by_scan(parameters: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of constants and carried values of a scan's body; JAX 0.12 stores them as trees."""
    if "num_consts" in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carried, _ = parameters["ft_in"].unpack()
    return len(constants.vals), len(carried.vals)
