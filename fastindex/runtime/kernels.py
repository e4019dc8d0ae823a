"""Kernels: functions of integers that are compiled to machine code, and that run without the GIL.

Numba reads their bytecode; `fastindex.runtime.lowering` writes the instructions of a kernel and of all that it calls to
one module, which LLVM optimises once. The code of a kernel is an object file; `fastindex.runtime.machine_code`
caches and loads it, and imports this module only if something must be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from llvmlite import binding, ir

from fastindex.runtime.lowering import Function, Instructions, Writer
from fastindex.runtime.numbers import FOR_C, FOR_PYTHON, Kernel
from fastindex.runtime.operations import as_int64

#: Decorator that makes a kernel of a function: `machine_code` compiles it, for literals and int64 numbers.
kernel: Callable[[Callable[..., Any]], Any] = Function


def unrolled_kernel(function: Callable[..., Any]) -> Any:
    """Make a kernel of a function as `kernel` does, whose loops LLVM unrolls, at its level 3.

    Without that it took 1.03 to 1.14 times as long; others run as fast, and compile in a third less time.
    """
    return Function(function, unrolled=True)


def subroutine(*literals: str, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that kernels call, compiled for the types of its arguments.

    Parts of a transpose would be compiled six times in one kernel if each constant argument made another function:
    only the parameters named in `literals` stay literals; other constants are passed as numbers. With `inline`, LLVM
    inlines the function into every caller.
    """
    return lambda function: Function(function, literals, inline)


def instructions(*literals: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator for a function that writes the LLVM instructions of a call to it in a kernel.

    The function gets LLVM's builder, then an LLVM value for each argument: an int64, a pointer, or a tuple of int64.
    For the parameters named in `literals` it gets a Python int if the argument is known. It returns its result, if any.
    """
    return lambda function: Instructions(function, literals)


# Machine code


_INT64, _OBJECT = ir.IntType(64), ir.IntType(8).as_pointer()


#: The size, as LLVM counts it, up to which it inlines what is called more than once: its own number at level 3. By
#: default it takes 525 there for calls in loops, and kernels took a seventh more time to compile, and ran no faster.
_INLINED_SIZE = 250


@cache
def _compiler(triple: str, processor: str, features: str) -> Any:
    """Return LLVM's compiler for a processor, which need not be this one."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    # Code for x86 in memory cannot be position-independent.
    relocation = "static" if triple.startswith("x86") else "default"
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc=relocation, codemodel="jitdefault", jit=True
    )


def compiled(kernel: Kernel, target: tuple[str, str, str]) -> Any:
    """Compile a kernel, and return LLVM's module, optimised, which exports `FOR_C` and `FOR_PYTHON`.

    Parameters
    ----------
    kernel : Kernel
    target : (str, str, str)
        The triple, the processor and its instructions, by LLVM's names: `machine_code.target`, or that of a level with
        whose `variables` this process was started.
    """
    compiler = _compiler(*target)
    module = ir.Module(kernel.function)
    module.triple, module.data_layout = compiler.triple, str(compiler.target_data)
    callee = getattr(import_module(kernel.module), kernel.function)
    _write_for_python(module, _write_for_c(module, callee, kernel.literals))
    found = binding.parse_assembly(str(module))
    found.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=3 if callee.unrolled else 2)
    tuning.loop_unrolling = callee.unrolled
    tuning.inlining_threshold = _INLINED_SIZE
    builder = binding.create_pass_builder(compiler, tuning)
    builder.getModulePassManager().run(found, builder)
    return found


def machine_code(kernel: Kernel, target: tuple[str, str, str]) -> bytes:
    """Compile a kernel, and return an object file that exports `FOR_C` and `FOR_PYTHON`."""
    return bytes(_compiler(*target).emit_object(compiled(kernel, target)))


def assembly(kernel: Kernel, target: tuple[str, str, str]) -> str:
    """Compile a kernel, and return the text of `machine_code`."""
    return str(_compiler(*target).emit_assembly(compiled(kernel, target)))


def _write_for_c(module: ir.Module, callee: Function, literals: tuple[int, ...]) -> ir.Function:
    """Write a C function of int64 that calls a kernel, and returns its result as int64; kernels raise nothing."""
    kind = ir.FunctionType(_INT64, [_INT64] * len(callee.are_literals))
    function = ir.Function(module, kind, FOR_C)
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    given = [*literals, *function.args[len(literals) :]]
    found = Writer(module).call(builder, callee.of_literals(len(literals)), given)
    builder.ret(_INT64(0) if found is None else as_int64(builder, found))
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
