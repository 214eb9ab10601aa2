"""The source tree as the tidy tests see it: modules, their imports, their functions, their SQL."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "feltd"


class Module(NamedTuple):
    """One file of feltd: its dotted name, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder under feltd/, or the file's own name at the top."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def place(self) -> str:
        """The path from the top, for messages."""
        return str(self.path.relative_to(ROOT))


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        name = dotted.removesuffix(".__init__")
        text = path.read_text()
        found.append(Module(name, path, text, ast.parse(text)))
    return tuple(found)


def imports(module: Module, *, at_run_time: bool = False) -> set[str]:
    """Dotted names the module imports; with `at_run_time` those for types alone are left out."""
    skipped: set[ast.AST] = set()
    if at_run_time:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                skipped.update(ast.walk(node))
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def functions(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    return [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def statements() -> list[tuple[Module, str]]:
    """Every SQL text that stands in the package as a constant."""
    found = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                if re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH)\b", text) and "\n" in text:
                    found.append((module, text))
    return found


def raised_codes() -> dict[str, set[str]]:
    """Codes named as string constants in the package outside the table, with the places."""
    found: dict[str, set[str]] = {}
    for module in modules():
        if module.name in {"feltd.errors", "feltd.api.explain"}:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.setdefault(node.value, set()).add(module.place)
    return found
