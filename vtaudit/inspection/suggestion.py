"""The `vtaudit process` command that fits what was found, with what it takes for granted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vtaudit.inspection.proposal import DEFAULT_PRESET, Proposal
from vtaudit.presets import Preset

SCORED = ("target_log_prob", "value", "bootstrap_value")
FLAGS = ("terminated", "truncated")
PLACEHOLDER = "COLUMN"
OPTIONS_IN_PLACE = ("step", *FLAGS)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A command to start from.

    Attributes:
        command: one line for a POSIX shell.
        is_complete: whether it runs as it is; else COLUMN stands where a column must be named.
        assumptions: what it takes for granted, for a person to confirm.
        choices: questions that the log cannot answer, with the options that answer them.
    """

    command: str
    is_complete: bool
    assumptions: tuple[str, ...]
    choices: tuple[str, ...]


def suggest_command(
    logs: Sequence[str],
    out: str,
    preset: Preset,
    proposals: Sequence[Proposal],
    *,
    has_discounts: bool,
) -> Suggestion:
    """Return the command for a log with these proposals.

    Args:
        logs: the LOGS arguments, as they were given.
        out: the run directory to name.
        preset: of the proposals.
        proposals: one for each canonical column.
        has_discounts: whether some discount is neither 0 nor 1.
    """
    by_name = {each.canonical: each for each in proposals}
    has_targets = all(by_name[name].expression is not None for name in SCORED[:2])
    words = ["vtaudit", "process", *logs, "--out", out]
    words += ["--preset", preset.name] if preset.name != DEFAULT_PRESET else []
    missing = []
    for each in proposals:
        text = _map_text(each, has_targets=has_targets)
        words += ["--map", f"{each.canonical}={text}"] if text else []
        missing += [each.canonical] if text == PLACEHOLDER else []
    assumptions, choices = list(_assumptions(proposals, has_targets=has_targets)), []
    for options, assumption, choice in _settings(
        by_name, preset, has_discounts=has_discounts, has_targets=has_targets
    ):
        words += options
        assumptions += [assumption] if assumption else []
        choices += [choice] if choice else []
    assumptions += [f"preset {preset.name}: {sentence}" for sentence in preset.assumes]
    choices += [
        f"which column is {name}? No name that is known stands in the log" for name in missing
    ]
    return Suggestion(shlex.join(words), not missing, tuple(assumptions), tuple(choices))


def _map_text(proposal: Proposal, *, has_targets: bool) -> str | None:
    """Return what --map must say for the column, None where nothing need be said."""
    is_idle = proposal.canonical in SCORED and not has_targets
    if proposal.status in ("stated", "alias", "assumed") and not is_idle:
        return proposal.expression
    if proposal.status == "own" or proposal.status == "preset":
        return None
    if proposal.needed and proposal.canonical not in OPTIONS_IN_PLACE:
        return PLACEHOLDER
    if proposal.canonical in FLAGS and proposal.status == "unusable":
        return PLACEHOLDER
    return "lit(null)" if proposal.status in ("unusable", "left_out") else None


def _assumptions(proposals: Sequence[Proposal], *, has_targets: bool) -> Iterator[str]:
    for each in proposals:
        if each.status == "assumed" and (has_targets or each.canonical not in SCORED):
            note = f" ({each.note})" if each.note else ""
            yield f"--map {each.canonical}={each.expression}{note}"


def _settings(
    by_name: Mapping[str, Proposal], preset: Preset, *, has_discounts: bool, has_targets: bool
) -> Iterator[tuple[list[str], str, str]]:
    """Yield options, what they assume, and the question behind them."""
    step = by_name["step"]
    is_implied = step.status == "missing" and "step" in preset.settings_without
    if step.expression is None and not is_implied:
        assumption = "--step-from order (the rows of a trajectory stand in the order of play)"
        yield ["--step-from", "order"], assumption, ""
    if all(by_name[name].status in ("missing", "left_out") for name in FLAGS):
        yield (
            ["--end-of-trajectory", "terminated"],
            "--end-of-trajectory terminated (no column tells how trajectories end)",
            "did the last row of each trajectory reach a terminal state (--end-of-trajectory "
            "terminated), or was it cut off by a limit (--end-of-trajectory truncated)?",
        )
    if has_discounts:
        yield (
            ["--gamma", "1"],
            "--gamma 1 (the logged discounts are full ones, gamma multiplied in)",
            "are the logged discounts full ones (--gamma 1), or to be multiplied by gamma "
            "(--gamma 0.99)?",
        )
    if not has_targets:
        absent = [name for name in SCORED[:2] if by_name[name].expression is None]
        yield (
            ["--no-targets"],
            "",
            f"where does the learner's {' and '.join(absent)} come from? --no-targets audits "
            "alone; with --scores DIR instead the targets are computed too",
        )
