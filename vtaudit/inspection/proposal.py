"""Which column of a log each canonical column could be read from; proposed, never applied."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vtaudit.canonical import LIST_COLUMNS, LOG_COLUMNS
from vtaudit.inspection.footers import Footers
from vtaudit.mapping import resolve_mapping
from vtaudit.mapping.expressions import Literal, parse_expression
from vtaudit.presets import Preset, list_presets, load_preset
from vtaudit.presets.aliases import Alias, Ambiguity, find_names, load_aliases, load_ambiguities

NEEDED = ("trajectory_id", "step", "reward", "terminated", "truncated", "behavior_log_prob")
FLAGS = ("terminated", "truncated")
PRESET_LEAST_NAMES = 3
DEFAULT_PRESET = "vtaudit"
LEFT_OUT = "lit(null)"
NEAR_MATCHES = 3
NEAR_CUTOFF = 0.75


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where one canonical column could come from.

    Attributes:
        canonical: the column.
        status: own (the log has it by that name), stated, preset, alias, assumed, unusable,
            left_out or missing.
        expression: what to read it from; None where it is unusable, left out or missing.
        needed: whether a run needs it, or a setting in its place.
        note: what to know about it.
        near: columns that it could be, where it is missing.
    """

    canonical: str
    status: str
    expression: str | None = None
    needed: bool = False
    note: str = ""
    near: tuple[str, ...] = ()


def choose_preset(footers: Footers) -> str:
    """Return the preset that names the most columns of the log, the default where none fits."""
    best, most = DEFAULT_PRESET, PRESET_LEAST_NAMES - 1
    for name in list_presets():
        preset = load_preset(name)
        columns = resolve_mapping({}, preset, list(LOG_COLUMNS), footers.paths)
        found = {key: each.text for key, each in columns.expressions.items()}
        implied = preset.settings_for(found)
        needed = [key for key in NEEDED if key not in FLAGS or "end_of_trajectory" not in implied]
        needed = [key for key in needed if key != "step" or "step_from" not in implied]
        if any(key not in found or footers.find_fault(key, found[key]) for key in needed):
            continue
        foreign = [key for key in NEEDED if found.get(key, key) != key and _reads(found[key])]
        if len(foreign) > most:
            best, most = name, len(foreign)
    return best


def _reads(text: str) -> tuple[str, ...]:
    return parse_expression(text).columns()


def propose_columns(
    footers: Footers, preset: Preset, maps: Mapping[str, str]
) -> tuple[list[Proposal], list[tuple[str, Ambiguity]]]:
    """Return a proposal for each canonical column, and the ambiguous columns with their entry.

    Args:
        footers: of the log.
        preset: its entries go before aliases.
        maps: what was stated by hand, which goes before everything.

    Raises:
        SettingsError: a stated map has no canonical name or is no expression.
        SchemaError: a stated map refers to a column that no file has.
    """
    found = _applied(footers, preset, maps)
    # the action first: the probability of the action taken is picked by it
    for canonical in ("action", *LOG_COLUMNS):
        old = found.get(canonical)
        if old is None or old.status == "unusable":
            better = _by_alias(canonical, footers, found)
            if better is not None:
                found[canonical] = better
    unclear = _ambiguous_columns(footers, found)
    for column, entry in unclear:
        for canonical, text in entry.assume.items():
            expression = text.format(column=column)
            if canonical not in found and footers.find_fault(canonical, expression) is None:
                found[canonical] = Proposal(canonical, "assumed", expression)
    _complete_flags(found)
    _drop_lists_of_continuous_actions(footers, found)
    proposals = [found.get(name) or _missing(name, footers) for name in LOG_COLUMNS]
    return [replace(each, needed=each.canonical in NEEDED) for each in proposals], unclear


def _applied(footers: Footers, preset: Preset, maps: Mapping[str, str]) -> dict[str, Proposal]:
    """Return what a run with this preset and these maps would read, with faults."""
    mapping = resolve_mapping(dict(maps), preset, list(LOG_COLUMNS), footers.paths)
    found = {}
    for canonical in LOG_COLUMNS:
        expression = mapping.expressions.get(canonical)
        if expression is None:
            if canonical in maps:
                found[canonical] = Proposal(canonical, "left_out")
            elif LEFT_OUT in preset.columns.get(canonical, ()):
                found[canonical] = Proposal(canonical, "preset", note="left out")
            continue
        text = expression.text
        status = "stated" if canonical in maps else "own" if text == canonical else "preset"
        fault = None
        if not isinstance(expression.root, Literal):
            fault = footers.find_fault(canonical, text)
        keyed = f"key({text})"
        if fault is None:
            found[canonical] = Proposal(canonical, status, text)
        elif LOG_COLUMNS[canonical].type == "id" and not footers.find_fault(canonical, keyed):
            note = "numbers in some files, text in others; key() makes all of them text"
            found[canonical] = Proposal(canonical, "assumed", keyed, note=note)
        else:
            found[canonical] = Proposal(canonical, "unusable", note=fault)
    return found


def _by_alias(canonical: str, footers: Footers, found: Mapping[str, Proposal]) -> Proposal | None:
    columns = [name for name in footers.columns if name not in LOG_COLUMNS]
    action = found["action"].expression if "action" in found else None
    fits: list[tuple[str, str]] = []
    for alias in (Alias(canonical, (canonical,)), *load_aliases()):
        if alias.canonical != canonical or ("{action}" in alias.expression and action is None):
            continue
        for column in find_names(alias.names, columns):
            text = alias.expression.format(column=column, action=action)
            if footers.find_fault(canonical, text) is None:
                fits.append((text, alias.what))
    if not fits:
        return None
    text, what = fits[0]
    others = list(dict.fromkeys(other for other, _ in fits[1:] if other != text))
    notes = [what] if what else []
    notes += [f"or {', '.join(others)}"] if others else []
    return Proposal(canonical, "alias", text, note="; ".join(notes))


def _ambiguous_columns(
    footers: Footers, found: Mapping[str, Proposal]
) -> list[tuple[str, Ambiguity]]:
    """Return the columns that may be something that is missing, or that a preset takes for it."""
    unclear: dict[str, Ambiguity] = {}
    for entry in load_ambiguities():
        has_company = entry.beside is None or _is_found(found, entry.beside)
        for column in find_names(entry.names, footers.columns):
            is_open = any(
                not _is_found(found, name) or column in _reads(found[name].expression or "")
                for name in entry.about
            )
            is_stated = any(
                each.status == "stated" and column in _reads(each.expression or "lit(null)")
                for each in found.values()
            )
            if has_company and is_open and not is_stated:
                unclear.setdefault(column, entry)
    return list(unclear.items())


def _is_found(found: Mapping[str, Proposal], canonical: str) -> bool:
    return canonical in found and found[canonical].expression is not None


def _complete_flags(found: dict[str, Proposal]) -> None:
    """Assume that one kind of end never occurs where the log has only the flag of the other."""
    for one, other in (FLAGS, FLAGS[::-1]):
        is_told = one in found and found[one].status != "left_out"
        if not is_told and _is_found(found, other):
            note = f"no column tells; assumed that no row is {one}"
            found[one] = Proposal(one, "assumed", "lit(false)", note=note)


def _drop_lists_of_continuous_actions(footers: Footers, found: dict[str, Proposal]) -> None:
    if not _is_found(found, "action"):
        return
    if footers.unify({"action": found["action"].expression or ""}).is_discrete:
        return
    for name in LIST_COLUMNS:
        if _is_found(found, name):
            note = (
                f"{found[name].expression}: the actions are floats, and masks and logits belong to "
                "discrete ones (--action-space discrete says that the actions are indices)"
            )
            found[name] = Proposal(name, "unusable", note=note)


def _missing(canonical: str, footers: Footers) -> Proposal:
    names: Sequence[str] = [path for path in footers.paths if path not in LOG_COLUMNS]
    known = [canonical]
    known += [
        name for alias in load_aliases() if alias.canonical == canonical for name in alias.names
    ]
    near = [path for path in names if "." in path and path.rpartition(".")[2] in known]
    near += difflib.get_close_matches(canonical, names, n=NEAR_MATCHES, cutoff=NEAR_CUTOFF)
    fits = [path for path in near if footers.find_fault(canonical, path) is None]
    return Proposal(canonical, "missing", near=tuple(dict.fromkeys(fits))[:NEAR_MATCHES])
