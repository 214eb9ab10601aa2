"""What the rules write agrees with the tables: codes, edges, migrations."""

import ast
import hashlib
import re

from feltd.errors import TABLE
from feltd.mesh.states import WORKER_EDGES, WORKLOAD_EDGES
from tests.tidy.source import ROOT, modules, raised_codes, statements


def test_every_refusal_names_a_code_of_the_table() -> None:
    wrong = [
        f"{module.place}:{node.lineno} {node.args[0].value}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"Refused", "Kept"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value not in TABLE
    ]
    assert not wrong, "\n".join(wrong)


def test_every_code_that_is_raised_is_in_the_table_and_every_row_is_raised() -> None:
    raised = raised_codes()
    never = sorted(set(TABLE) - set(raised))
    assert not never, f"never raised: {never}"


def test_every_code_is_reached_by_a_test() -> None:
    texts = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "tidy"
    )
    missing = sorted(code for code in TABLE if code not in texts)
    assert not missing, f"no test names: {missing}"


def _literals(text: str) -> list[str]:
    return re.findall(r"'([A-Z_]*)'", text)


def _edges_of(statement: str, column: str) -> set[tuple[str, str]]:
    to = re.search(rf"\bSET\b.*?\b{column}\s*=\s*'([A-Z_]+)'", statement, re.S)
    if not to:
        return set()
    where = statement.split("WHERE", 1)[-1]
    many = re.search(rf"\b{column}\s+IN\s*\(([^)]*)\)", where)
    one = re.search(rf"\b{column}\s*=\s*'([A-Z_]+)'", where)
    froms = _literals(many.group(1)) if many else [one.group(1)] if one else ["(none named)"]
    return {(state, to.group(1)) for state in froms}


def test_each_update_of_a_workloads_state_names_edges_that_exist() -> None:
    wrong = []
    for module, statement in statements():
        if re.match(r"UPDATE workloads\b", statement):
            wrong += [
                f"{module.place}: {edge}"
                for edge in _edges_of(statement, "state")
                if edge not in WORKLOAD_EDGES and edge[0] != edge[1]
            ]
            free = re.search(r"\bSET\b[^']*\bstate\s*=\s*:(\w+)", statement.split("WHERE")[0])
            if free:
                wrong.append(f"{module.place}: state = :{free.group(1)} is no literal")
    assert not wrong, "\n".join(wrong)


def test_each_update_of_a_workers_lifecycle_names_edges_that_exist() -> None:
    edges = {(a, b) for a, b, _cause in WORKER_EDGES}
    wrong = [
        f"{module.place}: {edge}"
        for module, statement in statements()
        if re.match(r"UPDATE workers\b", statement)
        for edge in _edges_of(statement, "lifecycle")
        if edge not in edges and edge[0] != edge[1]
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_formatted_into_sql() -> None:
    wrong = [
        f"{module.place}: {statement.splitlines()[0]}"
        for module, statement in statements()
        if re.search(r"\{\w+\}|%s|%\(", statement)
    ]
    assert not wrong, "\n".join(wrong)


def test_rules_stay_within_what_two_engines_understand() -> None:
    beyond = re.compile(r"\bINSERT OR\b|\browid\b|\bjson_|\bREPLACE INTO\b|\bAUTOINCREMENT\b")
    wrong = [
        f"{module.place}: {match.group(0)}"
        for module, statement in statements()
        if module.room in {"mesh", "identity", "state"}
        and not module.name.startswith(("feltd.mesh.promise", "feltd.state.promise"))
        and (match := beyond.search(statement))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_column_has_a_comment() -> None:
    """Operators read `.schema`: what a column holds, and in which unit, stands beside it."""
    bare = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "migrations").glob("*.sql"))
        for line in path.read_text().splitlines()
        if re.match(r"  [a-z_0-9]+ +(TEXT|INTEGER|REAL|BLOB)\b", line) and " -- " not in line
    ]
    assert not bare, "\n".join(bare)


def test_a_migration_never_changes_once_it_is_written_down() -> None:
    """The list grows with each new file; a changed checksum is a changed past."""
    kept = dict(
        reversed(line.split())
        for line in (ROOT / "tests/tidy/migrations.sha256").read_text().splitlines()
    )
    seen = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((ROOT / "migrations").glob("*.sql"))
    }
    assert seen == kept
