"""What a log must have: everything missing is named at once, with what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from commands import ROWS, make_table, write_files
from vtaudit import SchemaError, Settings, process

FLAGLESS = {"terminated": None, "truncated": None, "done": [False] * (ROWS - 1) + [True]}


def write_log(folder: Path, **columns: object) -> Path:
    return write_files(folder / "logs", {"a.parquet": make_table(**columns)})


def test_every_missing_column_is_named_with_what_to_do(tmp_path: Path) -> None:
    logs = write_log(tmp_path, reward=None, rewards=[1.0] * ROWS, target_log_prob=None)
    with pytest.raises(SchemaError) as caught:
        process(logs, tmp_path / "run", Settings(backend="reference"))
    text = str(caught.value)
    assert "column reward: no file has it (did you mean rewards?)" in text
    assert "column target_log_prob: no file has it" in text
    assert "--scores DIR" in text
    assert "vtaudit inspect" in text


def test_lone_done_is_named_where_flags_are_missing(tmp_path: Path) -> None:
    logs = write_log(tmp_path, **FLAGLESS)
    with pytest.raises(SchemaError, match="done is ambiguous: if nothing is cut off by a limit"):
        process(logs, tmp_path / "run", Settings(backend="reference"))


def test_done_that_is_not_read_is_noted_where_the_settings_give_the_ends(tmp_path: Path) -> None:
    logs = write_log(tmp_path, **FLAGLESS)
    settings = Settings(backend="reference", end_of_trajectory="terminated")
    result = process(logs, tmp_path / "run", settings)
    assert [note for note in result.notes if "the log has done, which is not read" in note]
    plain = write_files(
        tmp_path / "plain", {"a.parquet": make_table(terminated=None, truncated=None)}
    )
    assert process(plain, tmp_path / "other", settings).notes == ()


def test_columns_of_scores_that_are_not_read_are_noted(tmp_path: Path) -> None:
    logs = write_log(tmp_path)
    scores = {"trajectory_id": ["a"] * ROWS, "step": list(range(ROWS)), "value": [1.0] * ROWS}
    table = pa.table({**scores, "target_logp": [0.0] * ROWS})
    write_files(tmp_path / "scores", {"s.parquet": table})
    settings = Settings(backend="reference", scores=str(tmp_path / "scores"))
    notes = process(logs, tmp_path / "run", settings).notes
    assert "--scores gives value" in notes
    assert [note for note in notes if "not read: target_logp" in note]
