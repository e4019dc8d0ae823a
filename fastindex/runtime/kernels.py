"""Kernels: functions of integers that Numba compiles to machine code, and that run without the GIL.

By default, Numba optimises every function that a kernel calls and makes machine code for it, in case Python calls it.
Python never calls subroutines of kernels: here they are only typed and lowered, once for each set of literals, linked
into the kernel, and optimised with it, once. The code of a kernel is an object file;
`fastindex.runtime.machine_code` caches and loads it, and imports this module only if something must be compiled.
"""

from __future__ import annotations

import ctypes
import inspect
import platform
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from llvmlite import binding, ir
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic, register_jitable

from fastindex.runtime.numbers import FOR_C, FOR_PYTHON, Kernel

if TYPE_CHECKING:
    from fastindex.runtime.levels import Level


class _WithoutEnvironments:
    """A code generator for code without entry points for Python, which needs none of Numba's environments."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the code has no environment."""


class LinkedCode(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function, to be linked into a kernel, and never run by Numba."""

    @property
    def codegen(self) -> Any:
        """The code generator."""
        return _WithoutEnvironments(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """Return a function that raises a TypeError, should Python call this one after all."""
        self._ensure_finalized()
        found = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value
        assert found is not None
        return found

    def _optimize_functions(self, module: Any) -> None:
        """Set the data layout only: `compiled` optimises a kernel once, with all that it calls."""
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Do nothing, as `_optimize_functions`."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, limited to lowering a kernel and its subroutines: it makes no machine code."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a function, as `numba.core.compiler.CompilerBase` does; Numba's lock keeps other threads out."""
        codegen = self.state.targetctx.codegen()
        before = codegen._library_class
        codegen._library_class = LinkedCode
        try:
            return super().compile_extra(func)
        finally:
            codegen._library_class = before


Function = TypeVar("Function", bound=Callable[..., Any])
_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

#: Decorator that makes a kernel of a function: `machine_code` compiles it, for literals and int64 numbers.
kernel: Callable[[Callable[..., Any]], Any] = njit(pipeline_class=KernelCompiler, **_OPTIONS)


def subroutine(*literals: str, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that kernels call, compiled for the types of its arguments.

    Numba compiles a function again for each constant argument: parts of a transpose were compiled six times in one
    kernel. Here only the parameters named in `literals` stay literals; other constants are passed as numbers. With
    `inline`, LLVM inlines the function into every caller; Numba's own inlining copies the caller's code for each call.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(forceinline=inline, **_OPTIONS)(function)
        if not hasattr(dispatcher, "get_call_template"):
            return dispatcher
        are_kept = [name in literals for name in inspect.signature(function).parameters]
        template_of = dispatcher.get_call_template

        def get_call_template(arguments: Sequence[types.Type], named: dict[str, types.Type]) -> Any:
            pairs = zip(are_kept, arguments, strict=True)
            return template_of([one if is_kept else types.unliteral(one) for is_kept, one in pairs], named)

        dispatcher.get_call_template = get_call_template
        return dispatcher

    return decorate


def instructions(*literals: str, result: types.Type = types.void) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that emits the LLVM instructions of a call to it in a kernel: an intrinsic.

    The function gets LLVM's builder, then an LLVM value for each argument: an int64, a pointer, a tuple of int64. For
    the parameters named in `literals` it gets a Python int if the caller passes a constant. It returns a value of the
    type `result`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        names = list(inspect.signature(function).parameters)[1:]

        @wraps(function)
        def define(typing_context: Any, *arguments: types.Type) -> Any:
            pairs = zip(names, arguments, strict=True)
            kinds = [kind if name in literals else _type_in_registers(kind) for name, kind in pairs]

            def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
                pairs = zip(kinds, values, strict=True)
                passed = (kind.literal_value if isinstance(kind, types.Literal) else value for kind, value in pairs)
                found = function(builder, *passed)
                return context.get_dummy_value() if found is None else found

            return result(*kinds), generate

        return intrinsic(prefer_literal=True)(define)

    return decorate


def _type_in_registers(kind: types.Type) -> types.Type:
    if isinstance(kind, types.BaseTuple):
        return types.UniTuple(types.int64, kind.count)
    return kind if isinstance(kind, types.CPointer) else types.int64


def inlined(function: Function) -> Function:
    """Let kernels call `function`, which is cached as part of its callers."""
    return register_jitable(no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


# Machine code


def compile_for(level: Level) -> None:
    """Make this process compile for the architecture of a level; it was started with the level's `variables`.

    Numba takes the architecture from LLVM's process triple, which is replaced here. No kernel can run afterwards.
    """
    if binding.get_process_triple().startswith(level.architecture):
        return
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    system = binding.get_process_triple().partition("-")[2]
    binding.get_process_triple = lambda: f"{level.architecture}-{system}"
    platform.machine = lambda: level.architecture


_INT64, _OBJECT = ir.IntType(64), ir.IntType(8).as_pointer()


def compiled(kernel: Kernel) -> Any:
    """Compile a kernel, and return Numba's result."""
    dispatcher = getattr(import_module(kernel.module), kernel.function)
    numbers = len(inspect.signature(dispatcher.py_func).parameters) - len(kernel.literals)
    signature = (*map(types.literal, kernel.literals), *[types.int64] * numbers)
    dispatcher.compile(signature)
    found = dispatcher.overloads[signature]
    _optimise(found.library, found.fndesc.llvm_func_name)
    return found


def _optimise(library: Any, name: str) -> None:
    """Optimise a kernel with its subroutines, and drop those that were inlined everywhere."""
    module = library._final_module
    for function in module.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"
    passes, builder = library.codegen._module_pass_manager()
    passes.run(module, builder)


def machine_code(kernel: Kernel) -> bytes:
    """Compile a kernel, and return an object file that exports `FOR_C` and `FOR_PYTHON`."""
    found = compiled(kernel)
    codegen = found.library.codegen
    entries = codegen._create_empty_module(kernel.function)
    _write_for_python(entries, _write_for_c(entries, found))
    module = found.library._final_module.clone()
    module.link_in(binding.parse_assembly(str(entries)))
    return bytes(codegen._tm.emit_object(module))


def _write_for_c(module: ir.Module, found: Any) -> ir.Function:
    """Emit a C function of int64 that calls a kernel, and returns its result as int64; kernels raise nothing."""
    convention, described = found.target_context.call_conv, found.fndesc
    callee_type = convention.get_function_type(described.restype, described.argtypes)
    callee = ir.Function(module, callee_type, described.llvm_func_name)
    function = ir.Function(module, ir.FunctionType(_INT64, [_INT64] * len(described.argtypes)), FOR_C)
    builder = ir.IRBuilder(function.append_basic_block())
    _, result = convention.call_function(builder, callee, described.restype, described.argtypes, function.args)
    if described.restype == types.none:
        result = _INT64(0)
    builder.ret(result if result.type == _INT64 else builder.zext(result, _INT64))
    return function


def _write_for_python(module: ir.Module, callee: ir.Function) -> None:
    """Emit the same as a built-in function of Python (``METH_FASTCALL``): ctypes takes a microsecond or two."""

    def of_python(name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        return ir.Function(module, ir.FunctionType(result, arguments), name)

    count = len(callee.args)
    function = of_python(FOR_PYTHON, _OBJECT, _OBJECT, _OBJECT.as_pointer(), _INT64)
    blocks = [function.append_basic_block() for _ in range(5)]
    begin, rejected, converting, failed, running = map(ir.IRBuilder, blocks)
    begin.cbranch(begin.icmp_signed("==", function.args[2], _INT64(count)), blocks[2], blocks[1])
    rejected.call(of_python("PyErr_BadArgument", ir.IntType(32)), [])
    rejected.branch(blocks[3])
    as_number = of_python("PyLong_AsLongLong", _INT64, _OBJECT)
    arguments = [converting.load(converting.gep(function.args[1], [_INT64(k)])) for k in range(count)]
    numbers = [converting.call(as_number, [one]) for one in arguments]
    error = converting.call(of_python("PyErr_Occurred", _OBJECT), [])
    converting.cbranch(converting.icmp_unsigned("==", error, _OBJECT(None)), blocks[4], blocks[3])
    failed.ret(_OBJECT(None))
    thread = running.call(of_python("PyEval_SaveThread", _OBJECT), [])
    result = running.call(callee, numbers)
    running.call(of_python("PyEval_RestoreThread", ir.VoidType(), _OBJECT), [thread])
    running.ret(running.call(of_python("PyLong_FromLongLong", _OBJECT, _INT64), [result]))
