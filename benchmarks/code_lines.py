"""Count what an engineer has to read of the relayout engine for processors: code lines, kernels, fitted numbers.

    python benchmarks/code_lines.py

A code line has code: no docstring, comment or blank line counts. The planner is
`lowering/relayout/` with what only it is for. Fitted numbers are the thresholds of `tuning.py` and the
numeric constants of planner modules and kernels.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PACKAGE = ROOT / "fastindex"
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def code_lines(text: str) -> int:
    """How many lines have code.

    Examples
    --------
    >>> code_lines("'''Says what.'''\\n\\nx = 1  # one\\n# two\\ny = (\\n    2\\n)\\n")
    4
    """
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            strings.update(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED_TOKENS and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def planner_modules() -> list[Path]:
    """The modules that choose the passes of a relayout on processors."""
    lowering = PACKAGE / "lowering"
    beside = (lowering / "tuning.py", lowering / "index" / "regrouped.py", PACKAGE / "shapes" / "slot_format.py")
    return sorted((*(lowering / "relayout").rglob("*.py"), *beside))


def kernel_modules() -> list[Path]:
    return sorted((PACKAGE / "kernels" / "cpu").rglob("*.py"))


def constants(path: Path) -> int:
    """How many numbers somebody has chosen: those of a module's own names, of its thresholds and its coefficients.

    What other modules read is what planner and kernels agree on, and no matter of speed: names without an underscore
    in front do not count. Nor does what follows from other names, as places in scratch memory do, or what is called.
    """
    tree = ast.parse(path.read_text())
    count = 0
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            if names == ["COEFFICIENTS"] and isinstance(node.value, ast.Call):
                count += sum(_numbers(one.value) for one in node.value.keywords)
            elif all(name.startswith("_") and name.isupper() for name in names):
                count += _numbers(node.value)
        if isinstance(node, ast.ClassDef) and node.name in ("Tuning", "Coefficients"):
            count += sum(
                _numbers(field.value) for field in node.body if isinstance(field, ast.AnnAssign) and field.value
            )
    return count


def _numbers(value: ast.expr) -> int:
    """How many numbers an expression holds, those that others are made of once: ``64 << 10`` is one."""
    if isinstance(value, ast.BinOp | ast.UnaryOp):
        return int(not any(isinstance(one, ast.Name | ast.Attribute) for one in ast.walk(value)))
    if isinstance(value, ast.Constant):
        return int(isinstance(value.value, int | float))
    if isinstance(value, ast.Name | ast.Attribute | ast.Call):
        return 0
    return sum(_numbers(one) for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr))


def figures() -> dict[str, int]:
    """What is counted, by name."""
    from fastindex.moving.compiled_passes import PASS_KERNELS
    from fastindex.moving.warmup import relayout_kernels

    planner, kernels = planner_modules(), kernel_modules()
    return {
        "code lines of the planner": sum(code_lines(path.read_text()) for path in planner),
        "modules of the planner": len(planner),
        "code lines of kernels/cpu": sum(code_lines(path.read_text()) for path in kernels),
        "modules of kernels/cpu": len(kernels),
        "kernel names": len(PASS_KERNELS),
        "kernels compiled": sum(1 for _ in relayout_kernels()),
        "fitted numbers of the planner": sum(map(constants, planner)),
        "fitted numbers of kernels/cpu": sum(map(constants, kernels)),
    }


def main() -> None:
    for name, value in figures().items():
        print(f"{value:6,} {name}")


if __name__ == "__main__":
    main()
