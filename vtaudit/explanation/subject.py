"""One row of a judged shard: its values, its copies, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vtaudit.plan import Plan
from vtaudit.reasons import Reason
from vtaudit.shard import Shard


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of a judged shard.

    Attributes:
        plan: of the run.
        shard: the row's trajectory; results are there for the row's segment alone.
        row: its number in the shard.
    """

    plan: Plan
    shard: Shard
    row: int

    def cell(self, name: str, row: int | None = None) -> Any:
        """Return a canonical value of the row, or of another one; None where it is not mapped."""
        rows, row = self.shard.rows, self.row if row is None else row
        return rows[name].slice(row, 1).to_list()[0] if name in rows.columns else None

    def cells(self, *names: str) -> dict[str, Any]:
        """Return the canonical values of the row, of the columns that are mapped."""
        return {name: self.cell(name) for name in names if name in self.shard.rows.columns}

    def place(self, row: int) -> str:
        """Return FILE:ROW of a row of the shard."""
        return f"{self.shard.rows['source_file'][row]}:{self.shard.rows['row'][row]}"

    def reasons(self, row: int) -> list[str]:
        """Return the reasons of a row of the shard."""
        bits = int(self.shard.found.reasons[row])
        return [reason.code for reason in Reason if bits & reason.bit]

    def copies(self, step_after: int = 0) -> list[int]:
        """Return the rows of the same key, or of the key that many steps on; none without a key."""
        keys, key = self.shard.keys, int(self.shard.keys.key[self.row])
        other = key + step_after
        if key < 0 or other >= len(keys.starts):
            return [] if step_after else [self.row]
        is_next = keys.trajectory[other] == keys.trajectory[key]
        if not is_next or keys.step[other] != keys.step[key] + step_after:
            return []
        return [int(keys.starts[other]) + k for k in range(int(keys.counts[other]))]
