"""Counts the sample logs again, row by row in plain Python, and raises where the plan is off.

It shares nothing with make_logs.py but the files: `python sample_data/check_logs.py` prints the
counts that README.md states.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

Row = dict[str, Any]
TOLERANCE = 1e-3
PAYLOAD = (
    "action",
    "behavior_log_prob",
    "reward",
    "terminated",
    "truncated",
    "behavior_action_mask",
    "behavior_logits",
    "policy_version",
)
EXPECTED: dict[str, int] = {
    "received": 12000,
    "unique": 11800,
    "accepted": 10600,
    "rejected": 1400,
    "malformed": 1200,
    "malformed duplicate": 40,
    "mask_mismatch alone": 40,
    "clipped received": 3000,
    "clipped accepted": 2700,
    "rejected_any duplicate": 200,
    "rejected_any behavior_log_prob_missing": 180,
    "rejected_any behavior_log_prob_nan": 180,
    "rejected_any behavior_log_prob_infinite": 160,
    "rejected_any behavior_log_prob_positive": 140,
    "rejected_any behavior_logits_malformed": 240,
    "rejected_any behavior_log_prob_unreconciled": 300,
    "rejected_any mask_mismatch": 40,
}


def read(logs: Path) -> list[Row]:
    """All rows in file order; names with one digit sort naturally."""
    rows: list[Row] = []
    for path in sorted(logs.glob("*.parquet")):
        for place, row in enumerate(pq.read_table(path).to_pylist()):
            rows.append({**row, "file": path.name, "place": place})
    return rows


def log_prob_reason(value: float | None) -> str | None:
    if value is None:
        return "behavior_log_prob_missing"
    if math.isnan(value):
        return "behavior_log_prob_nan"
    if math.isinf(value):
        return "behavior_log_prob_infinite"
    return "behavior_log_prob_positive" if value > TOLERANCE else None


def logits_malformed(logits: list[float | None]) -> bool:
    sound = [x for x in logits if x is not None and not math.isnan(x) and x != math.inf]
    return len(sound) < len(logits) or all(x == -math.inf for x in sound)


def rebuilt(row: Row) -> float:
    mask = row["behavior_action_mask"] or [True] * len(row["behavior_logits"])
    pairs = zip(row["behavior_logits"], mask, strict=True)
    kept = [x if allowed else -math.inf for x, allowed in pairs]
    top = max(kept)
    total = math.log(sum(math.exp(x - top) for x in kept))
    return float(kept[row["action"]] - top - total)


def behavior_reasons(row: Row) -> list[str]:
    recorded, logits = row["behavior_log_prob"], row["behavior_logits"]
    found = [log_prob_reason(recorded)]
    if logits is not None and logits_malformed(logits):
        found.append("behavior_logits_malformed")
    elif logits is not None and recorded is not None and math.isfinite(recorded):
        off = abs(rebuilt(row) - recorded) > TOLERANCE
        found.append("behavior_log_prob_unreconciled" if off else None)
    return [reason for reason in found if reason is not None]


def mask_reasons(row: Row) -> list[str]:
    masks = [row["behavior_action_mask"], row["target_action_mask"]]
    given = [mask for mask in masks if mask is not None]
    lists = given + ([row["behavior_logits"]] if row["behavior_logits"] is not None else [])
    found = []
    if any(len(m) != len(x) or None in m or not any(m) for m in given for x in lists):
        found.append("mask_malformed")
    if masks[0] != masks[1]:
        found.append("mask_mismatch")
    if any(row["action"] is None or not 0 <= row["action"] < len(x) for x in lists):
        found.append("action_out_of_range")
    elif any(mask[row["action"]] is False for mask in given):
        found.append("action_masked")
    return found


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def reasons_of(row: Row, copies: list[Row]) -> list[str]:
    """In the contract's order. All copies of a key are equal here, so the first one is kept."""
    payloads = {repr([copy[name] for name in PAYLOAD]) for copy in copies}
    found = ["key_conflict"] if len(payloads) > 1 else []
    if len(payloads) == 1 and copies[0] is not row:
        found.append("duplicate")
    if None in (row["terminated"], row["truncated"]):
        found.append("flag_missing")
    if row["terminated"] and row["truncated"]:
        found.append("flag_contradiction")
    found += behavior_reasons(row)
    if not finite(row["target_log_prob"]) or row["target_log_prob"] > 0:
        found.append("target_log_prob_invalid")
    found += mask_reasons(row)
    found += [f"{name}_not_finite" for name in ("reward", "value") if not finite(row[name])]
    return found


def clipped(row: Row) -> bool | None:
    """None where there is no log_ratio."""
    if row["behavior_log_prob"] is None or math.isnan(row["behavior_log_prob"]):
        return None
    return bool(np.float32(row["target_log_prob"] - row["behavior_log_prob"]) > 0)


def boundary(row: Row, by_key: dict[Any, list[Row]], last: dict[Any, int]) -> tuple[str, str]:
    """(boundary, bootstrap source) of an accepted row; `last` is each window's greatest step."""
    if row["terminated"]:
        return "terminated", "none"
    logged = "logged" if finite(row["bootstrap_value"]) else "missing"
    if row["truncated"]:
        return "truncated", logged
    copies = by_key.get((row["trajectory_id"], row["step"] + 1), [])
    here = (row["trajectory_id"], row["unroll_id"])
    for copy in copies:
        if not copy["reasons"] and (copy["trajectory_id"], copy["unroll_id"]) == here:
            return "interior", "none"
    source = "next_row" if any(finite(copy["value"]) for copy in copies) else logged
    return ("window_edge" if last[here] == row["step"] else "gap"), source


def count(logs: Path) -> Counter[str]:
    rows = read(logs)
    by_key: dict[Any, list[Row]] = {}
    last: dict[Any, int] = {}
    for row in rows:
        by_key.setdefault((row["trajectory_id"], row["step"]), []).append(row)
        window = (row["trajectory_id"], row["unroll_id"])
        last[window] = max(row["step"], last.get(window, 0))
    for row in rows:
        row["reasons"] = reasons_of(row, by_key[row["trajectory_id"], row["step"]])
    seen = Counter({"received": len(rows), "unique": len(by_key), "windows": len(last)})
    for row in rows:
        seen.update(verdict_counts(row))
        if not row["reasons"]:
            cut, source = boundary(row, by_key, last)
            seen.update([f"boundary {cut}", f"bootstrap {source}", f"cut {cut} from {source}"])
    runs: dict[Any, list[bool]] = {}
    for row in rows:
        run = (row["file"], row["trajectory_id"], row["unroll_id"])
        runs.setdefault(run, []).append("duplicate" in row["reasons"])
    seen["deliveries"] = len(runs)
    seen["deliveries_duplicate"] = sum(all(run) for run in runs.values())
    return seen


def verdict_counts(row: Row) -> list[str]:
    reasons = row["reasons"]
    names = ["rejected" if reasons else "accepted"]
    names += [f"rejected_any {reason}" for reason in reasons]
    names += [f"rejected_primary {reason}" for reason in reasons[:1]]
    malformed = any(reason.startswith("behavior_log") for reason in reasons)
    names += ["malformed"] if malformed else []
    names += ["malformed duplicate"] if malformed and "duplicate" in reasons else []
    names += ["mask_mismatch alone"] if reasons == ["mask_mismatch"] else []
    above = clipped(row)
    names += ["received_with_ratio"] if above is not None else []
    names += ["clipped received"] if above else []
    names += ["clipped accepted"] if above and not reasons else []
    return names


def check(logs: Path) -> Counter[str]:
    """Raises unless the logs hold what is planned, and no reason or missing bootstrap besides."""
    seen = count(logs)
    wrong = {k: (seen[k], wanted) for k, wanted in EXPECTED.items() if seen[k] != wanted}
    surprising = [k for k in seen if k.startswith("rejected_any") and k not in EXPECTED]
    if wrong or surprising or seen["bootstrap missing"]:
        missing = seen["bootstrap missing"]
        raise ValueError(f"(counted, planned): {wrong}; {surprising}; no bootstrap: {missing}")
    return seen


if __name__ == "__main__":
    for name, number in sorted(check(Path(__file__).resolve().parent / "logs").items()):
        print(f"{number:6d} {name}")
