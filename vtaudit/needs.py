"""The columns that a log must have for the settings of a run."""

from __future__ import annotations

from collections.abc import Collection

from vtaudit.config import Settings
from vtaudit.errors import SchemaError, SettingsError, name_choices
from vtaudit.presets.aliases import find_ambiguous

FLAGS = ("terminated", "truncated")
ADVICE = {
    "step": "or say --step-from order if the rows stand in order",
    "terminated": "or say --end-of-trajectory if no column tells how episodes end",
    "truncated": "or say --map truncated=lit(false) if nothing is ever cut off by a limit",
    "target_log_prob": "or give it with --scores DIR, or say --no-targets to audit alone",
    "value": "or give it with --scores DIR, or say --no-targets to audit alone",
}


def check_columns(have: Collection[str], settings: Settings, columns: Collection[str]) -> list[str]:
    """Refuse a log that lacks a needed column; return doubts about one that does not.

    Args:
        have: the canonical columns that are mapped or scored.
        settings: of the run.
        columns: the log's own columns.

    Raises:
        SchemaError: needed columns are missing; all of them are named.
        SettingsError: the log has flags where the settings give them.
    """
    flags = [name for name in FLAGS if name in have]
    if settings.end_of_trajectory and flags:
        raise SettingsError(
            f"end_of_trajectory: the log has {flags[0]}; it is for logs without end flags only"
        )
    needed = ["trajectory_id", "reward", "behavior_log_prob"]
    needed += ["step"] if settings.step_from == "column" else []
    needed += ["target_log_prob", "value"] if settings.targets else []
    needed += [] if settings.end_of_trajectory else FLAGS
    needed += [*settings.expect]
    needed += [] if settings.learner_version is None else ["policy_version"]
    missing = [name for name in needed if name not in have]
    if missing:
        raise SchemaError(_describe(missing, columns))
    if settings.end_of_trajectory:
        return [
            f"--end-of-trajectory {settings.end_of_trajectory}: the log has {name}, which is not "
            "read; if it marks the ends of episodes, map it instead"
            for name, _ in find_ambiguous("terminated", columns)
        ]
    return []


def _describe(missing: list[str], columns: Collection[str]) -> str:
    """Return every missing column with what to do, one sentence."""
    parts = [f"column {name}: no file has it{_hint(name, columns)}" for name in missing]
    return (
        f"{'; '.join(parts)}; vtaudit inspect proposes a mapping; "
        f"the log has {', '.join(sorted(columns))}"
    )


def _hint(name: str, columns: Collection[str]) -> str:
    near = name_choices(name, columns).partition(";")[0]
    advice = f", {ADVICE[name]}" if name in ADVICE else ""
    ambiguous = "".join(
        f"; {column} is ambiguous: {choose}" for column, choose in find_ambiguous(name, columns)
    )
    return f"{near}; map it with --map {name}=COLUMN{advice}{ambiguous}"
