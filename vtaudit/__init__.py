"""vtaudit: audit logged trajectories and recompute V-trace targets before off-policy training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtaudit.config import Settings, load_settings
    from vtaudit.errors import (
        EngineError,
        InputError,
        LawError,
        SchemaError,
        SettingsError,
        VtauditError,
    )
    from vtaudit.kernels import Thresholds, VTrace, vtrace, vtrace_packed
    from vtaudit.pipeline import process
    from vtaudit.reports import RunResult

_HOMES = {
    "Settings": "config",
    "load_settings": "config",
    "EngineError": "errors",
    "InputError": "errors",
    "LawError": "errors",
    "SchemaError": "errors",
    "SettingsError": "errors",
    "VtauditError": "errors",
    "Thresholds": "kernels",
    "VTrace": "kernels",
    "vtrace": "kernels",
    "vtrace_packed": "kernels",
    "RunResult": "reports",
    "process": "pipeline",
}

__all__ = [
    "EngineError",
    "InputError",
    "LawError",
    "RunResult",
    "SchemaError",
    "Settings",
    "SettingsError",
    "Thresholds",
    "VTrace",
    "VtauditError",
    "load_settings",
    "process",
    "vtrace",
    "vtrace_packed",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vtaudit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"vtaudit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
