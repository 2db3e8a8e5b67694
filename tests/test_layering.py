"""Who may import whom: the imports of every module against a table."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vtaudit"

# module -> the modules of vtaudit that it imports, those for type checkers included
IMPORTS = {
    "__init__": "config errors kernels pipeline reports",
    "actions": "canonical config list_pass lists reasons",
    "appending": (
        "appending.buckets appending.committing appending.counting appending.forgetting "
        "appending.lines appending.loading appending.manifest appending.planning "
        "appending.reading appending.tables clock config laws places plan records reports "
        "storage store"
    ),
    "appending.buckets": (
        "appending.committing appending.counting appending.judging appending.learning "
        "appending.lines appending.loading clock labels outputs places reasons"
    ),
    "appending.committing": "errors places store",
    "appending.counting": (
        "appending.judging appending.learning counts outputs plan reasons records tallies"
    ),
    "appending.forgetting": "appending.lines errors ranges",
    "appending.joining": "canonical kernels ledger ordering records segments stretches",
    "appending.judging": (
        "appending.joining appending.payloads canonical columns kernels ledger plan reasons "
        "segments shard validation"
    ),
    "appending.learning": (
        "appending.judging appending.lines ledger plan reasons segments stretches"
    ),
    "appending.lines": "canonical errors labels store",
    "appending.loading": (
        "appending.judging appending.lines appending.reading columns joining labels ordering plan"
    ),
    "appending.manifest": (
        "appending.buckets appending.committing appending.counting appending.forgetting "
        "appending.lines appending.loading appending.taking canonical mapping outputs places "
        "plan reports storage store tallies"
    ),
    "appending.payloads": "canonical",
    "appending.planning": (
        "appending.committing appending.lines appending.taking config errors plan records storage"
    ),
    "appending.reading": (
        "appending.lines canonical config counts errors labels outputs plan reading reports units"
    ),
    "appending.tables": "appending.counting appending.taking audit plan store tallies",
    "appending.taking": "canonical errors records sources storage",
    "audit": "counts errors reasons records schemas tallies",
    "canonical": "errors schemas",
    "carry": "errors mapping records schemas",
    "checkpoints": "errors outputs pieces store tallies",
    "chunks": "layout plan reading",
    "cli": "cli.commands cli.group cli.process",
    "cli.commands": (
        "cli.group cli.options errors explanation explanation.report inspection "
        "inspection.report plain presets query reasons storage terminal verification "
        "verification.report"
    ),
    "cli.group": "errors",
    "cli.options": "config errors ranges",
    "cli.process": "cli.group cli.options config pipeline reports terminal tuning",
    "clock": "",
    "columns": "canonical plan",
    "compiled": "",
    "config": "errors ranges reasons schemas storage",
    "console": "",
    "count_pass": "compiled",
    "counts": "count_pass labels reasons records stretches tallies",
    "errors": "",
    "explanation": (
        "clock columns errors explanation.cut explanation.derivation explanation.lookup "
        "explanation.ruling explanation.subject joining labels plan reading reasons shard "
        "shards sources storage verification.replay"
    ),
    "explanation.acceptance": "config reasons",
    "explanation.cut": "explanation.subject reasons",
    "explanation.derivation": "plan reasons shard",
    "explanation.evidence": "actions canonical explanation.subject plan reasons",
    "explanation.lookup": "errors explanation.subject plan query schemas",
    "explanation.report": "console explanation explanation.derivation explanation.ruling",
    "explanation.ruling": (
        "canonical columns config explanation.acceptance explanation.evidence "
        "explanation.subject reasons validation"
    ),
    "explanation.subject": "plan reasons shard",
    "inspection": (
        "errors inspection.doubts inspection.footers inspection.proposal inspection.streams "
        "inspection.suggestion inspection.survey mapping mapping.expressions presets records "
        "sources storage"
    ),
    "inspection.doubts": (
        "inspection.footers inspection.proposal inspection.streams inspection.survey "
        "presets.aliases"
    ),
    "inspection.footers": "canonical errors mapping mapping.expressions records sources storage",
    "inspection.proposal": (
        "canonical inspection.footers mapping mapping.expressions presets presets.aliases"
    ),
    "inspection.report": "console inspection inspection.proposal inspection.streams",
    "inspection.streams": "",
    "inspection.suggestion": "inspection.proposal presets",
    "inspection.survey": "canonical errors mapping records sources",
    "joining": "canonical errors labels mapping plan records shards sources",
    "kernels": "kernels.backends kernels.dense kernels.packed kernels.targets",
    "kernels.arguments": "errors kernels.targets",
    "kernels.backends": "errors",
    "kernels.batches": "kernels.targets kernels.transfers kernels.triton_scan",
    "kernels.dense": (
        "errors kernels.arguments kernels.backends kernels.packed kernels.stream kernels.targets"
    ),
    "kernels.launches": "kernels.triton_rows kernels.triton_words",
    "kernels.numba_scan": "kernels.targets",
    "kernels.packed": (
        "errors kernels.arguments kernels.backends kernels.batches kernels.launches "
        "kernels.numba_scan kernels.reference kernels.stream kernels.targets "
        "kernels.triton_scan"
    ),
    "kernels.programs": "",
    "kernels.reference": "kernels.targets",
    "kernels.stream": (
        "kernels.arguments kernels.launches kernels.programs kernels.targets "
        "kernels.triton_counts kernels.triton_stream kernels.triton_words kernels.workspaces"
    ),
    "kernels.targets": "errors",
    "kernels.transfers": "",
    "kernels.triton_counts": "kernels.triton_rows",
    "kernels.triton_pairs": "",
    "kernels.triton_rows": "kernels.triton_pairs",
    "kernels.triton_scan": "kernels.arguments kernels.targets kernels.transfers",
    "kernels.triton_stream": (
        "kernels.triton_counts kernels.triton_pairs kernels.triton_rows kernels.triton_words"
    ),
    "kernels.triton_words": "kernels.triton_pairs",
    "kernels.workspaces": "kernels.launches kernels.triton_counts kernels.triton_words",
    "labels": "errors",
    "laws": "errors reasons",
    "layout": "canonical labels plan reading records stretches",
    "ledger": "ledger_pass stretches",
    "ledger_pass": "compiled",
    "list_pass": "compiled kernels.numba_scan lists",
    "lists": "",
    "mapping": "errors mapping.evaluation mapping.expressions presets",
    "mapping.evaluation": "errors mapping.expressions",
    "mapping.expressions": "errors",
    "memory": "config errors ranges records shards",
    "needs": "config errors presets.aliases",
    "ordering": "records",
    "outputs": (
        "audit canonical columns counts kernels labels ledger pieces plan reasons records "
        "results shard store tallies units"
    ),
    "pieces": "counts kernels labels",
    "pipeline": (
        "appending audit checkpoints clock config counts errors kernels laws outputs plan "
        "reading reports running storage store units"
    ),
    "places": "",
    "plain": "",
    "plan": (
        "canonical carry config errors kernels mapping memory needs records scores sources storage"
    ),
    "presets": "errors",
    "presets.aliases": "",
    "query": "audit errors places schemas store",
    "ranges": "",
    "reading": "canonical errors labels mapping plan sources stretches",
    "reasons": "",
    "records": "storage",
    "remote": "errors",
    "reports": "audit config outputs plan reasons records",
    "results": "canonical reasons schemas",
    "running": "checkpoints clock errors outputs pieces plan reports shard store tuning units",
    "schemas": "errors reasons",
    "scores": "canonical config errors records sources storage",
    "segment_pass": "compiled reasons records",
    "segments": "reasons records segment_pass",
    "shard": (
        "canonical clock columns joining kernels ledger ordering pieces plan reasons records "
        "segments stretches validation"
    ),
    "shards": "canonical errors labels",
    "sources": "errors ranges records storage",
    "storage": "errors remote",
    "store": "errors places ranges storage",
    "stretches": "labels",
    "tallies": "",
    "terminal": "console plain presets reasons reports",
    "training": "errors schemas storage training.epoch",
    "training.epoch": "errors store",
    "tuning": "",
    "units": "actions chunks joining labels layout memory plan reading shards",
    "validation": "actions canonical columns config reasons",
    "verification": (
        "errors places plan storage store verification.checks verification.comparison "
        "verification.recompute verification.replay verification.stores"
    ),
    "verification.checks": "config errors laws places query store verification.comparison",
    "verification.comparison": "outputs reasons schemas",
    "verification.recompute": (
        "audit clock outputs pieces plan shard units verification.comparison verification.replay"
    ),
    "verification.replay": "config errors places plan records shard storage store",
    "verification.report": "console verification.comparison",
    "verification.stores": (
        "appending appending.lines clock config errors outputs places plan records storage "
        "store verification.checks verification.comparison"
    ),
}

# package -> the modules that may import it, at any place in them
CONFINED = {
    "click": {"cli.commands", "cli.group", "cli.options", "cli.process"},
    "duckdb": {"audit", "query"},
    "fsspec": {"remote"},
    "numba": {
        "compiled",
        "count_pass",
        "kernels.numba_scan",
        "ledger_pass",
        "list_pass",
        "segment_pass",
    },
    "rich": {
        "console",
        "terminal",
        "explanation.report",
        "inspection.report",
        "verification.report",
    },
    "torch": {
        "kernels.arguments",
        "kernels.backends",
        "kernels.batches",
        "kernels.dense",
        "kernels.launches",
        "kernels.packed",
        "kernels.programs",
        "kernels.stream",
        "kernels.transfers",
        "kernels.triton_scan",
        "kernels.workspaces",
        "training",
    },
    # kernels.backends asks Triton whether it interprets
    "triton": {
        "kernels.backends",
        "kernels.programs",
        "kernels.stream",
        "kernels.triton_counts",
        "kernels.triton_pairs",
        "kernels.triton_rows",
        "kernels.triton_scan",
        "kernels.triton_stream",
        "kernels.triton_words",
    },
}
ANYWHERE = {"numpy", "polars", "pyarrow"}
STAGES = {"sources", "validation", "ledger", "segments", "counts", "results", "ordering"}
JOINERS = {
    "chunks",
    "joining",
    "layout",
    "outputs",
    "pieces",
    "pipeline",
    "plan",
    "reading",
    "running",
    "shard",
    "units",
}


def list_modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its name within the package."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


MODULES = list_modules()


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted name of everything that is imported, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name.removeprefix("vtaudit.") in MODULES
                yield name if is_module else str(node.module)


def own_imports(name: str) -> set[str]:
    """Return the modules of vtaudit that a module imports."""
    names = {found for found in imported(MODULES[name]) if found.startswith("vtaudit.")}
    return {found.removeprefix("vtaudit.") for found in names}


def foreign_imports(name: str) -> set[str]:
    """Return the packages outside the standard library that a module imports."""
    packages = {found.partition(".")[0] for found in imported(MODULES[name])}
    return packages - {"vtaudit"} - set(sys.stdlib_module_names)


def test_table_names_every_module_and_no_other() -> None:
    assert sorted(IMPORTS) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_what_the_table_says(name: str) -> None:
    assert sorted(own_imports(name)) == sorted(IMPORTS[name].split())


@pytest.mark.parametrize("name", MODULES)
def test_foreign_packages_stay_where_they_belong(name: str) -> None:
    packages = foreign_imports(name)
    assert packages <= CONFINED.keys() | ANYWHERE
    assert {package for package in packages if name not in CONFINED.get(package, {name})} == set()


@pytest.mark.parametrize("package", CONFINED)
def test_confinement_holds_no_module_that_does_not_need_it(package: str) -> None:
    assert {name for name in MODULES if package in foreign_imports(name)} == CONFINED[package]


@pytest.mark.parametrize("name", sorted(STAGES))
def test_stage_imports_no_other_stage_and_nothing_that_joins_them(name: str) -> None:
    assert own_imports(name) & ((STAGES | JOINERS) - {name}) == set()


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("kernels")])
def test_kernels_import_only_errors_and_themselves(name: str) -> None:
    outside = {found for found in own_imports(name) if not found.startswith("kernels.")}
    assert outside <= {"errors"}


def test_only_what_plans_and_joins_imports_kernels() -> None:
    users = {
        name
        for name in MODULES
        if not name.startswith("kernels")
        and any(found.split(".")[0] == "kernels" for found in own_imports(name))
    }
    joining = {"appending.joining", "appending.judging"}
    assert users == {
        "__init__",
        "list_pass",
        "outputs",
        "pieces",
        "pipeline",
        "plan",
        "shard",
        *joining,
    }


def test_imports_have_no_cycle() -> None:
    remaining = {name: own_imports(name) & MODULES.keys() for name in MODULES}
    while remaining:
        free = [name for name, needs in remaining.items() if not needs & remaining.keys()]
        assert free, f"a cycle among {sorted(remaining)}"
        for name in free:
            del remaining[name]


@pytest.mark.parametrize("name", MODULES)
def test_environment_is_never_read(name: str) -> None:
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "environb", "getenv", "getenvb")
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            assert {alias.name for alias in node.names} & {"environ", "getenv"} == set()
