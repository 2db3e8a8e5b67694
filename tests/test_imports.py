"""What importing vtaudit loads, and what it exports."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

import vtaudit
from commands import ROOT, SAMPLE_LOGS, run_python

HEAVY = {"click", "duckdb", "numba", "numpy", "polars", "pyarrow", "rich", "torch", "triton"}
TELL = "import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"


def loaded(code: str, *arguments: str | Path) -> set[str]:
    """Return the names of the packages that are loaded once `code` has run."""
    done = run_python(f"try:\n    {code}\nfinally:\n    {TELL}", *arguments)
    modules: list[str] = json.loads(done.stderr.splitlines()[-1])
    assert "vtaudit" in modules, done.stderr
    return {name.partition(".")[0] for name in modules}


def test_import_vtaudit_loads_none_of_the_heavy_packages() -> None:
    assert loaded("import vtaudit") & HEAVY == set()


@pytest.mark.parametrize("command", [(), ("process",), ("reasons",)], ids=str)
def test_help_loads_click_alone(command: tuple[str, ...]) -> None:
    code = "from vtaudit.cli import main; main(prog_name='vtaudit')"
    assert loaded(code, *command, "--help") & HEAVY == {"click"}


def test_process_with_numba_loads_neither_torch_nor_triton(tmp_path: Path) -> None:
    code = (
        "import sys, vtaudit; from vtaudit import Settings;"
        " vtaudit.process(sys.argv[1], sys.argv[2], Settings(backend='numba'))"
    )
    packages = loaded(code, SAMPLE_LOGS, tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").is_file()
    assert packages & {"torch", "triton", "click", "rich", "fsspec"} == set()
    assert "numba" in packages


def test_process_with_the_reference_loads_neither_torch_nor_triton(tmp_path: Path) -> None:
    code = (
        "import sys, vtaudit; from vtaudit import Settings;"
        " vtaudit.process(sys.argv[1], sys.argv[2], Settings(backend='reference'))"
    )
    packages = loaded(code, ROOT / "sample_data" / "two_step", tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").is_file()
    assert packages & {"torch", "triton"} == set()


@pytest.mark.parametrize("name", vtaudit.__all__)
def test_exported_name_is_the_one_of_its_module(name: str) -> None:
    home = importlib.import_module(f"vtaudit.{vtaudit._HOMES[name]}")
    assert getattr(vtaudit, name) is getattr(home, name)


def test_all_is_exactly_what_is_exported_lazily() -> None:
    assert sorted(vtaudit.__all__) == sorted(vtaudit._HOMES)
    assert len(set(vtaudit.__all__)) == len(vtaudit.__all__)


def test_all_is_exactly_what_type_checkers_see() -> None:
    tree = ast.parse(Path(vtaudit.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes == {name: f"vtaudit.{home}" for name, home in vtaudit._HOMES.items()}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'vtrase'"):
        vtaudit.vtrase  # noqa: B018


def print_after_the_command(expression: str, tmp_path: Path, *options: str) -> list[str]:
    """Return what `vtaudit process`, then a look at a package in the same process, prints."""
    code = (
        "import sys; from vtaudit.cli import main;"
        " main(['process', sys.argv[1], '--out', sys.argv[2], '--quiet', *sys.argv[3:]],"
        f" standalone_mode=False); import polars, pyarrow; print({expression})"
    )
    return run_python(code, SAMPLE_LOGS, tmp_path / "run", *options).stdout.split()


def test_threads_limit_the_pool_of_polars_too(tmp_path: Path) -> None:
    found = print_after_the_command("polars.thread_pool_size()", tmp_path, "--threads", "1")
    assert found == ["1"]


def test_a_command_has_arrow_allocate_where_numpy_does(tmp_path: Path) -> None:
    backend = "pyarrow.default_memory_pool().backend_name"
    assert print_after_the_command(backend, tmp_path) == ["system"]


def test_the_library_leaves_the_allocation_of_its_process_alone(tmp_path: Path) -> None:
    code = (
        "import sys, vtaudit, pyarrow; before = pyarrow.default_memory_pool().backend_name;"
        " vtaudit.process(sys.argv[1], sys.argv[2]);"
        " print(pyarrow.default_memory_pool().backend_name == before != 'system')"
    )
    assert run_python(code, SAMPLE_LOGS, tmp_path / "run").stdout.split() == ["True"]
