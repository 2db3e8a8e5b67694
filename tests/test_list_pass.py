"""The compiled pass over masks and logits against the contract's words, row by row in Python."""

from __future__ import annotations

import decimal
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numba.core import caching

from vtaudit import list_pass
from vtaudit.actions import judge_lists, note_lists, rebuild_log_probs
from vtaudit.canonical import unify_types
from vtaudit.config import Settings

Row = dict[str, Any]
NAN, INF = math.nan, math.inf
TOLERANCE = 1e-3
MASKS = ("behavior_action_mask", "target_action_mask")
LOGITS = ("behavior_logits", "target_logits")
TYPES: dict[str, Any] = {
    **dict.fromkeys(MASKS, pl.List(pl.Boolean)),
    **dict.fromkeys(LOGITS, pl.List(pl.Float64)),
    "action": pl.Float64,
    "behavior_log_prob": pl.Float64,
    "behavior_temperature": pl.Float64,
    "behavior_epsilon": pl.Float64,
    **{f"present:{name}": pl.Boolean for name in MASKS},
}
ACTIONS = (None, -1.0, -0.0, 0.5, 7.0, 2.0**31, 1e300, NAN, INF)
RULES = (
    *("MASK_MALFORMED", "MASK_MISMATCH", "ACTION_OUT_OF_RANGE", "ACTION_MASKED"),
    *("BEHAVIOR_LOGITS_MALFORMED", "BEHAVIOR_LOG_PROB_UNRECONCILED", "NOT_REBUILT"),
)


def given(row: Row, names: tuple[str, ...]) -> list[list[Any]]:
    return [row[name] for name in names if row.get(name) is not None]


def mask_malformed(row: Row) -> bool:
    masks, lists = given(row, MASKS), given(row, MASKS + LOGITS)
    return any(True not in mask or None in mask for mask in masks) or any(
        len(mask) != len(other) for mask in masks for other in lists
    )


def mask_mismatch(row: Row, policy: str) -> bool:
    behavior, target = row.get(MASKS[0]), row.get(MASKS[1])
    has_behavior, has_target = (row[f"present:{name}"] for name in MASKS)
    if behavior is None and target is None:
        return False
    if behavior is None:
        return policy == "equal" and has_behavior
    if target is None:
        return has_target and (policy == "equal" or False in behavior)
    if len(behavior) != len(target):
        return False
    pairs = list(zip(behavior, target, strict=True))
    return (False, True) in pairs if policy == "subset" else behavior != target


def index_of(row: Row) -> int | None:
    """The action as an index of each list given."""
    action = row.get("action")
    if action is None or not math.isfinite(action) or action < 0 or action != int(action):
        return None
    fits = all(action < len(of) for of in given(row, MASKS + LOGITS))
    return int(action) if fits and action < 2**31 else None


def is_masked(row: Row, names: tuple[str, ...]) -> bool:
    """Whether some mask given says false at the action."""
    action = row.get("action")
    if action is None or not math.isfinite(action) or action != int(action) or action < 0:
        return False
    return any(action < len(mask) and mask[int(action)] is False for mask in given(row, names))


def mixture(row: Row) -> tuple[float, float]:
    temperature, epsilon = row.get("behavior_temperature"), row.get("behavior_epsilon")
    return 1.0 if temperature is None else temperature, 0.0 if epsilon is None else epsilon


def logits_malformed(row: Row) -> bool:
    logits, target, (temperature, epsilon) = row[LOGITS[0]], row.get(LOGITS[1]), mixture(row)
    has_fault = any(x is None or math.isnan(x) or x == INF for x in logits)
    return (
        has_fault
        or all(x == -INF for x in logits)  # also of no logits at all
        or (target is not None and len(target) != len(logits))
        or math.isnan(temperature)
        or not 0 <= temperature < INF
        or not 0 <= epsilon <= 1
    )


def log_mu(row: Row) -> float | None:
    """Log of the mixture's probability of the action, with 60 digits; None where not judged."""
    action, (temperature, epsilon) = index_of(row), mixture(row)
    is_barred = action is None or is_masked(row, MASKS[:1]) or mask_malformed(row)
    if is_barred or temperature == 0:
        return None
    logits, mask = row[LOGITS[0]], row.get(MASKS[0])
    legal = [k for k, x in enumerate(logits) if x > -INF and (mask is None or mask[k])]
    if action not in legal:
        return -INF
    with decimal.localcontext(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        scaled = {k: Decimal(logits[k]) / Decimal(temperature) for k in legal}
        top, share = max(scaled.values()), Decimal(epsilon)
        softmax = (scaled[action] - top).exp() / sum((x - top).exp() for x in scaled.values())
        return float(((1 - share) * softmax + share / len(legal)).ln())


def judge(row: Row, policy: str) -> tuple[set[str], float]:
    """The rules that a row breaks, and log mu, NaN where it is not rebuilt."""
    found = {"MASK_MALFORMED"} if mask_malformed(row) else set()
    found |= {"MASK_MISMATCH"} if mask_mismatch(row, policy) else set()
    has_choice = bool(given(row, MASKS) or given(row, LOGITS[:1]))
    if has_choice and "action" in row and index_of(row) is None:
        found.add("ACTION_OUT_OF_RANGE")
    found |= {"ACTION_MASKED"} if is_masked(row, MASKS) else set()
    if row.get(LOGITS[0]) is None:
        return found, NAN
    if logits_malformed(row):
        return found | {"BEHAVIOR_LOGITS_MALFORMED"}, NAN
    recorded = row["behavior_log_prob"]
    if recorded is None or not math.isfinite(recorded):
        return found, NAN
    rebuilt = log_mu(row)
    if rebuilt is None:
        return found | {"NOT_REBUILT"}, NAN
    is_off = abs(recorded - rebuilt) > TOLERANCE
    return found | ({"BEHAVIOR_LOG_PROB_UNRECONCILED"} if is_off else set()), rebuilt


def rarely(chosen: random.Random, usual: Any, *others: Any) -> Any:
    return chosen.choice(others) if chosen.random() < 0.1 else usual


def make_mask(chosen: random.Random, length: int) -> list[bool | None] | None:
    length = rarely(chosen, length, 0, length + 1)
    allowed = rarely(chosen, 0.8, 0.0, 1.0)
    mask: list[bool | None] = [chosen.random() < allowed for _ in range(length)]
    if mask and chosen.random() < 0.1:
        mask[chosen.randrange(length)] = None
    return rarely(chosen, mask, None)


def make_logits(chosen: random.Random, length: int) -> list[float | None] | None:
    length = rarely(chosen, length, 0, length + 1)
    logits: list[float | None] = [chosen.gauss(0, 4) for _ in range(length)]
    for k in range(length):
        logits[k] = rarely(chosen, logits[k], -INF, -INF, 500.0)
    if logits and chosen.random() < 0.1:
        logits[chosen.randrange(length)] = chosen.choice((None, NAN, INF))
    return rarely(chosen, logits, None, [-INF] * length)


def make_random_row(chosen: random.Random, mapped: set[str]) -> Row:
    length = chosen.choice((1, 2, 3, 7, 8, 9, 18))
    mask = make_mask(chosen, length)
    row = {
        MASKS[0]: mask,
        MASKS[1]: make_mask(chosen, length) if chosen.random() < 0.3 else mask,
        LOGITS[0]: make_logits(chosen, length),
        LOGITS[1]: make_logits(chosen, length),
        "action": rarely(chosen, float(chosen.randrange(length)), *ACTIONS),
        "behavior_temperature": rarely(chosen, 1.5, None, 0.0, -0.0, -1.0, NAN, INF, 1e-3),
        "behavior_epsilon": rarely(chosen, 0.125, None, 0.0, 1.0, 1.5, -0.1, NAN, 1e-9),
        **{f"present:{name}": chosen.random() < 0.8 for name in MASKS},
    }
    row = {name: cell for name, cell in row.items() if name in mapped}
    row["behavior_log_prob"] = 0.0
    rebuilt = judge(row, "equal")[1]
    near = rebuilt + chosen.choice((-2, -0.9, 0, 0.9, 2)) * TOLERANCE
    recorded = near if math.isfinite(near) else -1.0
    return row | {"behavior_log_prob": rarely(chosen, recorded, None, NAN, -INF, INF)}


def make_log(seed: int, height: int) -> list[Row]:
    chosen = random.Random(seed)
    optional = [*MASKS, *LOGITS, "action", "behavior_temperature", "behavior_epsilon"]
    absent = set() if seed % 2 else {name for name in optional if chosen.random() < 0.3}
    return [make_random_row(chosen, TYPES.keys() - absent) for _ in range(height)]


def make_frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={name: TYPES[name] for name in rows[0]})


def assert_judged_as_defined(frame: pl.DataFrame, rows: list[Row], policy: str) -> set[str]:
    settings = Settings(mask_policy=policy, reconcile_tolerance=TOLERANCE)
    found = {
        rule.name: set(broken.tolist()) for rule, broken in judge_lists(frame, settings).items()
    }
    judged = [judge(row, policy) for row in rows]
    for rule in RULES:
        expected = {place for place, (names, _) in enumerate(judged) if rule in names}
        assert found.get(rule, set()) == expected, rule
    rebuilt = rebuild_log_probs(frame, settings)
    expected_mu = [mu for _, mu in judged]
    np.testing.assert_allclose(rebuilt, expected_mu, rtol=1e-12, atol=1e-12)
    return set().union(*(names for names, _ in judged))


@pytest.mark.parametrize("policy", ["equal", "subset"])
@pytest.mark.parametrize("seed", range(8))
def test_pass_judges_as_the_contract_says(seed: int, policy: str) -> None:
    rows = make_log(seed, 600)
    broken = assert_judged_as_defined(make_frame(rows), rows, policy)
    assert broken == set(RULES) or seed % 2 == 0


@pytest.mark.parametrize("seed", range(8))
def test_findings_are_the_same_once_the_lists_are_left_out(seed: int) -> None:
    frame, settings = make_frame(make_log(seed, 300)), Settings(reconcile_tolerance=TOLERANCE)
    noted = note_lists(frame, settings)
    assert not {*MASKS, *LOGITS} & set(noted.columns)
    expected = {rule: rows.tolist() for rule, rows in judge_lists(frame, settings).items()}
    found = {rule: rows.tolist() for rule, rows in judge_lists(noted, settings).items()}
    assert {rule: rows for rule, rows in found.items() if rule in expected} == expected
    assert not any(rows for rule, rows in found.items() if rule not in expected)


def test_logits_in_float32_are_judged_as_their_values_in_float64() -> None:
    rows = make_log(1, 300)
    frame = make_frame(rows).with_columns(pl.col(*LOGITS).cast(pl.List(pl.Float32)))
    exact = frame.with_columns(pl.col(*LOGITS).cast(pl.List(pl.Float64)))
    settings = Settings(reconcile_tolerance=TOLERANCE)
    found, expected = (judge_lists(each, settings) for each in (frame, exact))
    assert {rule: rows.tolist() for rule, rows in found.items()} == {
        rule: rows.tolist() for rule, rows in expected.items()
    }
    rebuilt = rebuild_log_probs(frame, settings)
    np.testing.assert_array_equal(rebuilt, rebuild_log_probs(exact, settings))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((pa.float32(), pa.float32()), pl.Float32()),
        ((pa.float32(), pa.float64()), pl.Float64()),
        ((pa.float64(), pa.float32()), pl.Float64()),
        ((pa.float32(), pa.int32()), pl.Float64()),
    ],
    ids=str,
)
def test_logits_have_the_wider_type_of_all_files(
    types: tuple[pa.DataType, ...], expected: pl.DataType
) -> None:
    found = {f"{k}.parquet": {LOGITS[0]: pa.list_(each)} for k, each in enumerate(types)}
    assert unify_types(found, "auto").dtypes == {LOGITS[0]: pl.List(expected)}


@pytest.mark.parametrize("start", [1, 3, 8, 65])
def test_pass_judges_slices_and_chunks_alike(start: int) -> None:
    rows = make_log(1, 200)
    whole = make_frame(rows)
    assert_judged_as_defined(whole[start:190], rows[start:190], "equal")
    assert_judged_as_defined(whole[start:start], [], "equal")
    assert_judged_as_defined(whole[start : start + 1], rows[start : start + 1], "equal")
    chunks = pl.concat([whole[start:90], whole[90:91], whole[120:]], rechunk=False)
    assert_judged_as_defined(chunks, rows[start:90] + rows[90:91] + rows[120:], "equal")


def test_pass_ignores_what_lies_beneath_a_null_list() -> None:
    rows = [row | dict.fromkeys(MASKS + LOGITS) for row in make_log(1, 3)]
    nulls, offsets = pa.array([True] * 3), pa.array([0, 2, 4, 6], pa.int32())
    masks = pa.ListArray.from_arrays(offsets, pa.array([False, None] * 3), mask=nulls)
    logits = pa.ListArray.from_arrays(offsets, pa.array([NAN, 0.0] * 3), mask=nulls)
    columns = {name: pl.Series(masks) for name in MASKS}
    columns |= {name: pl.Series(logits) for name in LOGITS}
    frame = make_frame(rows).with_columns(**columns)
    assert_judged_as_defined(frame, rows, "equal")


@pytest.mark.parametrize(
    ("mapped", "rules"),
    [
        ({"action"}, ()),
        ({MASKS[0]}, RULES[:1]),
        ({MASKS[1], "action"}, (RULES[0], *RULES[2:4])),
        ({*MASKS, "action"}, RULES[:4]),
        ({LOGITS[0]}, RULES[4:]),
        ({LOGITS[1], "action"}, RULES[2:3]),
        ({*MASKS, LOGITS[0], "action"}, RULES),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else None,
)
def test_rule_is_judged_when_its_columns_are_mapped(
    mapped: set[str], rules: tuple[str, ...]
) -> None:
    always = {"behavior_log_prob", *(f"present:{name}" for name in MASKS)}
    frame = make_frame(make_log(1, 5)).select(*sorted(mapped | always))
    assert {rule.name for rule in judge_lists(frame, Settings())} == set(rules)


@pytest.mark.parametrize("recorded", [-TOLERANCE, TOLERANCE])
def test_log_prob_is_reconciled_when_it_is_off_by_the_tolerance(recorded: float) -> None:
    further = math.nextafter(recorded, math.copysign(1.0, recorded))
    rows = [
        {"action": 0.0, LOGITS[0]: [3.0], "behavior_log_prob": value}
        for value in (recorded, further)
    ]
    found = {
        rule.name: broken.tolist()
        for rule, broken in judge_lists(
            make_frame(rows), Settings(reconcile_tolerance=TOLERANCE)
        ).items()
    }
    assert found["BEHAVIOR_LOG_PROB_UNRECONCILED"] == [1]


@pytest.mark.parametrize(
    ("logits", "temperature", "epsilon", "expected"),
    [
        ([1e308, -1e308], 1.0, 0.0, -INF),
        ([1e308, -1e308], 1.0, 0.5, math.log(0.25)),
        ([1000.0, 0.0], 1.0, 0.0, -1000.0),
        ([0.0, 0.0], 5e-324, 0.0, -math.log(2)),
        ([7.0, -3.0, 2.0], 1.0, 1.0, -math.log(3)),
        ([7.0, -3.0, -INF], 1.0, 1.0, -math.log(2)),
        ([7.0, -INF, 1.0], 1.0, 1.0, -INF),
        ([0.0, 1.0, 700.0], 1e308, 0.0, -math.log(3)),
    ],
    ids=str,
)
def test_log_mu_of_action_1_when_numbers_are_extreme(
    logits: list[float], temperature: float, epsilon: float, expected: float
) -> None:
    mixed = {"behavior_temperature": temperature, "behavior_epsilon": epsilon}
    row = {"action": 1.0, LOGITS[0]: logits, "behavior_log_prob": -1.0, **mixed}
    rebuilt = rebuild_log_probs(make_frame([row]), Settings())
    assert rebuilt[0] == pytest.approx(expected, rel=1e-15)


def test_pass_runs_without_a_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in (caching.CompileResultCacheImpl, caching.CodeLibraryCacheImpl):
        monkeypatch.setattr(cache, "_locator_classes", [])
    list_pass._compile_pass.cache_clear()
    rows = make_log(1, 20)
    assert_judged_as_defined(make_frame(rows), rows, "equal")
    list_pass._compile_pass.cache_clear()
