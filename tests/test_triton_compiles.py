"""Every form of the kernels compiles for a GPU, which needs none: the interpreter accepts more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parent.parent
CODE = """
import sys
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from vtaudit.kernels import triton_counts, triton_scan, triton_stream

def build(kernel, types, constants):
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    unset = {name: None for name in names if name not in types and name not in constants}
    source = ASTSource(kernel, signature, {**unset, **constants}, {})
    compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})

def build_stream(carry, window, everything, is_wide, ahead=0):
    number = "*fp64" if is_wide else "*fp32"
    names = ["target", "value", "reward", "bootstrap", "value_target", "advantage"]
    if everything:
        names += ["discount", "log_ratio", "rho", "c", "pg_rho", "delta", "next_value"]
        names += ["trace_length"]
    if window:
        names += ["behavior"]
    types = {name + "_ptr": number for name in names}
    types["end_ptr"] = "*u8" if window else "*i64"
    types |= {"word_ptr": "*i64"} if carry else {}
    types |= {"clip_ptr": "*i64"} if everything else {}
    types |= dict.fromkeys(triton_stream.NUMBERS, "i64")
    types |= {"panels": "i32", "chunks": "i32"}
    constants = {"M": 128, "CARRY": carry, "HAS_ONE_PANEL": False, "LOOKS_AHEAD": ahead}
    constants |= {"TURNS": 16 if carry == 1 else 1, "HAS_GAPS": carry == 1}
    constants |= {"HAS_GROUPS": carry in (1, 2)}
    constants |= {"WINDOW": window, "ARE_BARS_ONE": not is_wide, "IS_RESULT_WIDE": is_wide}
    constants |= {"IS_COMPUTE_WIDE": is_wide, "WAITS": True, "IS_EARLY": carry == 3}
    build(triton_stream.vtrace_stream_kernel, types, constants)

def build_counts():
    types = {"slot_ptr": "*i64", "clip_ptr": "*i64", "stride": "i64"}
    build(triton_counts.add_counts_kernel, types, {"IS_EARLY": True})

def build_scan(time):
    names = ["log_ratio", "value", "reward", "discount", "bootstrap", "value_target", "rho"]
    types = {name + "_ptr": "*fp32" for name in names}
    types |= {"offsets_ptr": "*i64", "segments_ptr": "*i64", "segment_count": "i64"}
    types |= {"parameters_ptr": "*fp64", "delta_carry_ptr": "*fp64", "trace_carry_ptr": "*fp64"}
    types |= {"is_followed_ptr": "*i1"}
    constants = {"SEGMENTS": 1024 // time, "TIME": time, "COMPUTE": tl.float64}
    build(triton_scan.vtrace_scan_kernel, types, constants)
"""
FORMS = {
    "stream_none": "build_stream(0, 2, True, False)",
    "stream_chain": "build_stream(1, 3, False, False)",
    "stream_looks_ahead": "build_stream(1, 0, True, False, 1)",
    "stream_tree_float64": "build_stream(2, 1, True, True)",
    "stream_repair": "build_stream(3, 3, True, False)",
    "counts": "build_counts()",
    "segments": "build_scan(512)",
}


@pytest.mark.parametrize("form", FORMS)
def test_kernel_compiles(form, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "build.py"
    script.write_text(f"{CODE}\n{FORMS[form]}\n")
    command = [sys.executable, str(script)]
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
