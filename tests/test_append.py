"""A store takes each file once, keeps the verdicts it gave, and judges open segments later."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from commands import invoke, make_table, run_command, write_files
from logs import make_row, make_stream, write_rows
from stores import Growing
from vtaudit import InputError, SchemaError, Settings, SettingsError, process, training
from vtaudit.query import ask, open_run
from vtaudit.store import read_manifest
from vtaudit.verification import verify


@pytest.fixture
def store(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def open_rows(first: int, last: int, **cells: Any) -> list[dict[str, Any]]:
    """Return rows of one episode that has not ended."""
    return [make_row(step, **cells) for step in range(first, last)]


def test_each_file_is_taken_once(store: Growing) -> None:
    store.add("a.parquet", make_stream(3, trajectory_id="a"))
    result = store.add("b.parquet", make_stream(4, trajectory_id="b"))
    assert result.summary["received"] == result.summary["accepted"] == 7
    assert [(row["batch"], row["path"]) for row in store.audit("files")] == [
        (1, "a.parquet"),
        (2, "b.parquet"),
    ]
    assert [row["batch"] for row in store.audit("runs")] == [1, 2]
    assert store.counts(1)["received"] == 3
    assert store.counts(2)["received"] == 4


def test_nothing_changes_when_nothing_is_new(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    before = store.bytes()
    result = store.append(close=True)
    assert "nothing new" in result.notes[0]
    assert result.summary["accepted"] == 3
    assert result.findings == ()
    assert store.bytes() == before


def test_file_is_skipped_when_only_its_mtime_is_new(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    before = store.bytes()
    os.utime(store.logs / "a.parquet", ns=(1, 1))
    store.append()
    assert store.bytes() == before


def test_changed_file_is_named_and_refused(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    before = store.bytes()
    write_rows(make_stream(3, reward=5.0), store.logs / "a.parquet")
    os.utime(store.logs / "a.parquet", ns=(1, 1))
    with pytest.raises(InputError, match=r"a\.parquet: has changed since batch 1 took it"):
        store.add("b.parquet", make_stream(2, trajectory_id="b"))
    assert store.bytes() == before


def test_taken_files_may_vanish(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 3))
    (store.logs / "a.parquet").unlink()
    assert store.append().summary["pending"] == 3
    result = store.add("b.parquet", [make_row(3, terminated=True)])
    assert result.summary["accepted"] == 4
    shutil.rmtree(store.logs)
    store.logs.mkdir()
    assert "nothing new" in store.append().notes[0]


def test_unreadable_file_is_taken_once_it_is_whole(store: Growing) -> None:
    write_rows(make_stream(3, trajectory_id="b"), store.logs / "b.parquet")
    whole = (store.logs / "b.parquet").read_bytes()
    (store.logs / "b.parquet").write_bytes(whole[:-20])
    result = store.add("a.parquet", make_stream(2, trajectory_id="a"))
    assert "1 of 2 files unreadable, as b.parquet" in result.findings[0]
    assert (result.summary["files"], result.summary["files_unreadable"]) == (2, 1)
    before = store.bytes()
    again = store.append()
    assert "unreadable" in again.findings[0]
    assert store.bytes() == before
    (store.logs / "b.parquet").write_bytes(whole)
    last = store.append()
    assert last.findings == ()
    assert last.summary["accepted"] == 5
    assert (last.summary["files"], last.summary["files_unreadable"]) == (2, 0)
    statuses = [(row["batch"], row["path"], row["status"]) for row in store.audit("files")]
    assert statuses == [
        (1, "a.parquet", "read"),
        (1, "b.parquet", "unreadable"),
        (2, "b.parquet", "read"),
    ]


def test_names_stay_unambiguous_when_logs_lie_elsewhere(store: Growing, tmp_path: Path) -> None:
    store.add("a.parquet", make_stream(3, trajectory_id="a"))
    write_rows(make_stream(3, trajectory_id="b"), tmp_path / "day_2" / "a.parquet")
    store.logs = tmp_path / "day_2"
    store.append()
    names = {row["trajectory_id"]: row["source_file"] for row in store.table("targets")}
    assert names == {"a": "a.parquet", "b": "day_2/a.parquet"}


def test_log_is_refused_when_its_name_cannot_be_made_unique(store: Growing, tmp_path: Path) -> None:
    for place, home in enumerate((tmp_path / "1/logs", tmp_path / "2/logs", tmp_path / "3/logs")):
        write_rows(make_stream(2, trajectory_id=str(place)), home / "a.parquet")
        store.logs = home
        if place < 2:
            store.append()
    with pytest.raises(SettingsError, match=r"its source_file would be logs/a\.parquet"):
        store.append()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rho_bar": 2.0}, "rho_bar: found 2.0, the store was made with 1.0"),
        ({"windows": "stitched"}, "windows: found stitched, the store was made with delivered"),
        ({"overwrite": True}, "overwrite: not with append"),
        ({"resume": True}, "resume: not with append"),
        ({"step_from": "order"}, "step_from order: not with append"),
        ({"forget_after": "soon"}, "forget_after: found 'soon', expected a time as 30d"),
    ],
)
def test_settings_are_refused_that_do_not_go_with_the_store(
    store: Growing, options: dict[str, Any], text: str
) -> None:
    store.add("a.parquet", make_stream(2))
    before = store.bytes()
    with pytest.raises(SettingsError, match=text):
        store.append(**options)
    assert store.bytes() == before


def test_end_of_trajectory_is_refused(store: Growing) -> None:
    rows = [
        {k: v for k, v in row.items() if k[:3] not in ("ter", "tru")} for row in open_rows(0, 3)
    ]
    with pytest.raises(SettingsError, match="end_of_trajectory: not with append"):
        store.add("a.parquet", rows, end_of_trajectory="terminated")
    assert not store.path.exists()


@pytest.mark.parametrize("options", [{"close": True}, {"forget_after": "3d"}])
def test_settings_of_stores_need_append(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="add --append"):
        Settings(**options)


def test_another_version_is_refused(store: Growing) -> None:
    store.add("a.parquet", make_stream(2))
    text = (store.path / "manifest.json").read_text(encoding="utf-8")
    ours = f'"vtaudit": "{read_manifest(store.path)["versions"]["vtaudit"]}"'
    (store.path / "manifest.json").write_text(text.replace(ours, '"vtaudit": "0.0.1"'))
    with pytest.raises(SettingsError, match=r"vtaudit 0\.0\.1 made the store"):
        store.add("b.parquet", make_stream(2, trajectory_id="b"))


def test_plain_run_and_foreign_directory_are_no_stores(store: Growing, tmp_path: Path) -> None:
    write_rows(make_stream(2), store.logs / "a.parquet")
    process(store.logs, store.path, Settings(backend="reference"))
    with pytest.raises(SettingsError, match="is a run, and --append adds to stores only"):
        store.append()
    store.path = tmp_path / "foreign"
    store.path.mkdir()
    (store.path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"holds notes\.txt, and no store"):
        store.append()
    assert (store.path / "notes.txt").read_text() == "mine"


def test_store_is_never_overwritten(store: Growing) -> None:
    store.add("a.parquet", make_stream(2))
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match="is a store that grows"):
            process(store.logs, store.path, Settings(overwrite=overwrite))


def test_id_that_changes_its_type_is_refused_by_name(store: Growing) -> None:
    store.add("a.parquet", make_stream(2))
    rows = make_stream(2, trajectory_id=7)
    write_rows(rows, store.logs / "b.parquet", {"trajectory_id": pa.int64()})
    with pytest.raises(SchemaError, match=r"b\.parquet, column trajectory_id: found Int64"):
        store.append()


def test_actions_that_become_continuous_are_refused(store: Growing) -> None:
    store.add("a.parquet", make_stream(2, action=1))
    write_rows(
        make_stream(2, first=2, action=0.5), store.logs / "b.parquet", {"action": pa.float64()}
    )
    with pytest.raises(SchemaError, match="column action: found floats"):
        store.append()


def test_version_labels_may_change_from_numbers_to_text(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 2, env_version=3))
    rows = [make_row(2, env_version="3", terminated=True)]
    write_rows(rows, store.logs / "b.parquet", {"env_version": pa.string()})
    store.append()
    assert store.column("boundary") == {0: "interior", 1: "interior", 2: "terminated"}


def test_second_process_is_refused(store: Growing) -> None:
    store.add("a.parquet", make_stream(2))
    lock = os.open(store.path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = run_command("process", store.logs, "--out", store.path, "--append", "--gamma", "1")
    os.close(lock)
    assert found.returncode == 2
    assert "another vtaudit process is adding to it" in found.stderr


def test_later_copy_is_a_duplicate_when_its_payload_is_equal(store: Growing) -> None:
    store.add("a.parquet", make_stream(2, reward=0.0, discount=1.0))
    copies = make_stream(2, reward=-0.0, discount=1.0, value=9.0, unroll_id=4)
    store.add("b.parquet", [{**row, "action": None} for row in copies])
    assert store.reasons() == {("b.parquet", 0): ["duplicate"], ("b.parquet", 1): ["duplicate"]}
    assert store.column("value") == {0: 2.0, 1: 2.0}
    assert store.warnings() == {}


def test_earlier_row_stays_when_a_later_copy_differs(store: Growing) -> None:
    store.add("a.parquet", make_stream(2))
    result = store.add("b.parquet", [make_row(0, reward=7.0), make_row(0)])
    assert store.reasons() == {("b.parquet", 0): ["key_conflict"], ("b.parquet", 1): ["duplicate"]}
    assert store.column("reward") == {0: 1.0, 1: 1.0}
    assert store.warnings() == {"later_conflict": 1}
    assert (
        "later_conflict: t step 0: b.parquet:0 differs from a.parquet:0 of batch 1, which stays"
        in result.notes
    )


def test_key_in_conflict_stays_in_conflict(store: Growing) -> None:
    store.add("a.parquet", [make_row(0, terminated=True), make_row(0, reward=7.0, terminated=True)])
    store.add("b.parquet", [make_row(0, terminated=True)])
    assert set(map(tuple, store.reasons().values())) == {("key_conflict",)}
    assert store.table("targets") == []
    assert store.warnings() == {}


@pytest.mark.parametrize("change", [{"reward": math.nan}, {"value": None}])
def test_clean_copy_is_accepted_when_the_key_was_rejected(
    store: Growing, change: dict[str, Any]
) -> None:
    store.add("a.parquet", [make_row(0, terminated=True, **change)])
    result = store.add("b.parquet", [make_row(0, terminated=True)])
    assert store.column("source_file") == {0: "b.parquet"}
    assert (result.summary["received"], result.summary["unique"]) == (2, 1)


def test_redelivery_is_accepted_when_only_the_bootstrap_was_missing(store: Growing) -> None:
    store.add("a.parquet", [make_row(0, truncated=True)])
    assert store.reasons() == {("a.parquet", 0): ["bootstrap_missing"]}
    store.add("b.parquet", [make_row(0, truncated=True, bootstrap_value=3.0)])
    assert store.column("next_value") == {0: 3.0}


def test_open_segment_is_pending_until_its_successor_comes(store: Growing) -> None:
    first = store.add("a.parquet", open_rows(0, 3))
    assert [first.summary[name] for name in ("received", "accepted", "rejected", "pending")] == [
        3,
        0,
        0,
        3,
    ]
    assert store.table("targets") == store.table("rejects") == []
    last = store.add("b.parquet", [make_row(3, terminated=True)])
    assert [last.summary[name] for name in ("received", "accepted", "rejected", "pending")] == [
        4,
        4,
        0,
        0,
    ]
    assert set(store.column("boundary").values()) == {"interior", "terminated"}
    assert {row["source_file"] for row in store.table("targets")} == {"a.parquet", "b.parquet"}
    assert store.counts(1) == {
        "received": 3,
        "unique": 3,
        "accepted": 3,
        "deliveries": 1,
        "windows": 1,
    }
    assert store.counts(2)["received"] == store.counts(2)["accepted"] == 1


def test_only_the_segment_that_is_open_is_pending(store: Growing) -> None:
    rows = open_rows(0, 5)
    rows[1]["terminated"] = True
    store.add("a.parquet", rows)
    assert store.column("boundary") == {0: "interior", 1: "terminated"}
    assert store.audit("summary")[0]["pending"] == 3


def test_gap_without_bootstrap_waits_for_the_row_that_fills_it(store: Growing) -> None:
    rows = make_stream(4)
    store.add("a.parquet", [rows[0], rows[2], rows[3]])
    assert store.column("boundary") == {2: "interior", 3: "terminated"}
    store.add("b.parquet", [rows[1]])
    assert set(store.column("boundary").values()) == {"interior", "terminated"}


def test_close_judges_what_is_open(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 3))
    result = store.append(close=True)
    assert store.reasons() == {("a.parquet", 2): ["bootstrap_missing"]}
    assert store.column("boundary") == {0: "interior", 1: "gap"}
    assert store.column("next_value") == {0: 2.0, 1: 2.0}
    assert (result.summary["pending"], result.summary["rejected"]) == (0, 1)
    later = store.add("b.parquet", open_rows(2, 3, bootstrap_value=1.0))
    assert later.summary["accepted"] == 3


def test_pending_row_takes_the_bootstrap_of_a_redelivery(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 2))
    copies = open_rows(0, 2)
    copies[1]["bootstrap_value"] = 5.0
    store.add("b.parquet", copies)
    assert store.column("bootstrap_source") == {0: "none", 1: "logged"}
    assert store.column("source_file") == {0: "a.parquet", 1: "b.parquet"}
    assert store.reasons() == {("a.parquet", 1): ["duplicate"], ("b.parquet", 0): ["duplicate"]}
    assert store.audit("summary")[0]["pending"] == 0


def test_successor_in_another_window_gives_its_value(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 2, unroll_id=1))
    store.add("b.parquet", make_stream(2, first=2, unroll_id=2, value=8.0))
    assert store.column("boundary")[1] == "window_edge"
    assert store.column("next_value")[1] == 8.0
    assert store.column("bootstrap_source")[1] == "next_row"


def test_edge_with_a_logged_bootstrap_is_judged_at_once(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 2, bootstrap_value=6.0))
    assert store.column("next_value") == {0: 2.0, 1: 6.0}
    store.add("b.parquet", [make_row(2, terminated=True)])
    assert store.column("next_value")[1] == 6.0
    assert store.warnings() == {"edge_before_successor": 1}
    rows = [row for row in store.audit("audit_by") if row["measure"] == "warning"]
    kinds = {(row["batch"], row["kind"]) for row in rows}
    assert kinds == {(2, "edge_before_successor")}
    store.add("c.parquet", make_stream(1, first=2))
    assert store.warnings() == {"edge_before_successor": 1}


def test_stitched_edge_is_open_even_with_a_logged_bootstrap(tmp_path: Path) -> None:
    store = Growing(tmp_path, windows="stitched")
    store.add("a.parquet", open_rows(0, 2, bootstrap_value=6.0, unroll_id=1))
    assert store.audit("summary")[0]["pending"] == 2
    store.add("b.parquet", open_rows(2, 3, unroll_id=2, bootstrap_value=4.0))
    assert store.audit("summary")[0]["pending"] == 3
    store.append(close=True)
    assert store.column("boundary") == {0: "interior", 1: "interior", 2: "window_edge"}
    assert store.column("next_value") == {0: 2.0, 1: 2.0, 2: 4.0}
    assert store.warnings() == {}


def test_trace_goes_on_into_rows_that_were_judged_before(store: Growing) -> None:
    """On-policy with gamma 1, value_target is the sum of the rewards to come."""
    stream = make_stream(5, target_log_prob=-1.0)
    rows = [{**row, "reward": 10.0**place} for place, row in enumerate(stream)]
    store.add("c.parquet", rows[3:])
    store.add("b.parquet", rows[1:3])
    store.add("a.parquet", rows[:1])
    assert store.column("value_target") == {4: 1e4, 3: 11e3, 2: 111e2, 1: 1111e1, 0: 11111.0}
    assert store.column("trace_length") == {4: 1.0, 3: 2.0, 2: 3.0, 1: 4.0, 0: 5.0}
    # pg_t (r_t + value_target_{t+1} - V_t)
    assert store.column("advantage")[0] == 1.0 + 11110.0 - 2.0
    assert store.column("next_value")[2] == 2.0
    assert store.column("boundary") == {4: "terminated", **dict.fromkeys(range(4), "interior")}


def test_late_predecessor_is_cut_off_when_its_successor_is_of_another_window_or_lineage(
    store: Growing,
) -> None:
    store.add("a.parquet", make_stream(2, first=1, unroll_id=1, actor_id="x"))
    cells = {"bootstrap_value": 7.0}
    other = make_row(0, unroll_id=2, actor_id="x", **cells)
    store.add("b.parquet", [other])
    assert store.column("boundary")[0] == "window_edge"
    assert store.column("next_value")[0] == 2.0
    store.add("c.parquet", make_stream(1, first=5, trajectory_id="u", unroll_id=1, actor_id="x"))
    store.add("d.parquet", [make_row(4, trajectory_id="u", unroll_id=1, actor_id="y", **cells)])
    assert store.column("boundary")[4] == "gap"
    assert store.column("next_value")[4] == 7.0


def test_edge_knows_the_greatest_step_of_earlier_batches(store: Growing) -> None:
    store.add("a.parquet", [make_row(5, reward=math.nan, terminated=True)])
    store.add("b.parquet", [make_row(3, bootstrap_value=1.0)])
    assert store.column("boundary") == {3: "gap"}


def test_window_remembers_its_greatest_step_when_it_had_duplicates_only(store: Growing) -> None:
    rows = [make_row(step, unroll_id=1, terminated=True) for step in (5, 1)]
    copies = [{**row, "unroll_id": 2} for row in rows]
    store.add("a.parquet", [*rows, *copies])
    store.add("b.parquet", [make_row(3, unroll_id=2, bootstrap_value=1.0)])
    assert store.column("boundary") == {1: "terminated", 3: "gap", 5: "terminated"}


def test_edge_keeps_its_name_when_its_window_goes_on_behind_a_hole(store: Growing) -> None:
    store.add("a.parquet", [make_row(0, bootstrap_value=1.0)])
    store.add("b.parquet", [make_row(2, terminated=True)])
    assert store.column("boundary") == {0: "window_edge", 2: "terminated"}
    assert store.warnings() == {}


def test_same_bytes_are_written_by_any_number_of_threads(tmp_path: Path) -> None:
    found = []
    for threads in (1, 4):
        store = Growing(tmp_path / str(threads), threads=threads)
        for place in range(3):
            rows = [
                row
                for name in range(12)
                for row in make_stream(3, first=3 * place, trajectory_id=f"t{name}")
            ]
            store.add(f"{place}.parquet", [{**row, "terminated": False} for row in rows])
        files = {n: b for n, b in store.bytes().items() if n.endswith(".parquet")}
        found.append({n: b for n, b in files.items() if not n.endswith("runs.parquet")})
    assert found[0] == found[1]
    assert len(found[0]) > 10


def test_first_copy_over_all_batches_gives_its_value(store: Growing) -> None:
    store.add("a.parquet", [make_row(1, value=5.0, target_log_prob=None, terminated=True)])
    store.add("b.parquet", [make_row(1, value=6.0, terminated=True, unroll_id=2), make_row(0)])
    assert store.column("next_value") == {1: 0.0, 0: 5.0}


def test_neighbor_stays_cut_when_the_clean_copy_comes_later(store: Growing) -> None:
    rows = make_stream(2)
    bad = {**rows[1], "target_log_prob": None}
    store.add("a.parquet", [rows[0], bad])
    assert store.column("boundary") == {0: "gap"}
    store.add("b.parquet", [rows[1]])
    assert store.column("boundary") == {0: "gap", 1: "terminated"}
    assert store.column("bootstrap_source")[0] == "next_row"


def test_row_that_is_not_finite_is_kept_for_its_copies(tmp_path: Path) -> None:
    store = Growing(tmp_path, dtype="float32")
    rows = make_stream(2)
    rows[1]["reward"] = 1e300
    store.add("b.parquet", [rows[1]])
    store.add("a.parquet", [rows[0], rows[1]])
    assert store.reasons() == {
        ("b.parquet", 0): ["target_not_finite"],
        ("a.parquet", 0): ["target_not_finite"],
        ("a.parquet", 1): ["duplicate"],
    }


def test_pending_rows_keep_carried_columns_and_their_place(tmp_path: Path) -> None:
    store = Growing(tmp_path, carry=("observation",))
    types = {"observation": pa.list_(pa.float32())}
    rows = [{**row, "observation": [float(place), 0.5]} for place, row in enumerate(make_stream(3))]
    write_rows(rows[:2], store.logs / "a.parquet", types)
    store.append()
    write_rows(rows[2:], store.logs / "b.parquet", types)
    store.append()
    assert store.column("observation") == {0: [0.0, 0.5], 1: [1.0, 0.5], 2: [2.0, 0.5]}
    places = {
        row["step"]: (row["source_file"], row["source_row"]) for row in store.table("targets")
    }
    assert places == {0: ("a.parquet", 0), 1: ("a.parquet", 1), 2: ("b.parquet", 0)}


def test_column_that_later_files_lack_or_first_have_is_null_elsewhere(store: Growing) -> None:
    store.add("a.parquet", open_rows(0, 1, discount=0.5))
    store.add("b.parquet", open_rows(1, 2))
    store.add("c.parquet", [make_row(2, terminated=True, policy_version=4)])
    assert store.column("discount") == {0: 0.5, 1: 1.0, 2: 1.0}
    assert store.column("policy_version") == {0: None, 1: None, 2: 4}


def test_scores_come_with_each_batch(tmp_path: Path) -> None:
    store = Growing(tmp_path)
    names = ("target_log_prob", "value")
    rows = [{k: v for k, v in row.items() if k not in names} for row in make_stream(3)]
    for place, part in enumerate((rows[:2], rows[2:])):
        scores = [
            {
                "trajectory_id": "t",
                "step": r["step"],
                "target_log_prob": -1.0,
                "value": 10.0 * r["step"],
            }
            for r in part
        ]
        write_rows(scores, tmp_path / f"scores_{place}" / "s.parquet")
        store.add(f"{place}.parquet", part, scores=str(tmp_path / f"scores_{place}"))
    assert store.column("value") == {0: 0.0, 1: 10.0, 2: 20.0}
    assert store.warnings() == {}
    with pytest.raises(SchemaError, match="column target_log_prob"):
        store.add("z.parquet", rows[:1])


def test_audit_alone_leaves_nothing_pending(tmp_path: Path) -> None:
    store = Growing(tmp_path, targets=False)
    store.add("a.parquet", open_rows(0, 3))
    result = store.add("b.parquet", open_rows(2, 4))
    assert (result.summary["accepted"], result.summary["rejected"]) == (4, 1)
    assert store.reasons() == {("b.parquet", 0): ["duplicate"]}


def test_keys_are_forgotten_by_age(store: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from vtaudit.appending import forgetting, manifest

    def at(day: int) -> None:
        for module in (forgetting, manifest):
            monkeypatch.setattr(module, "now", lambda: datetime(2026, 1, day, tzinfo=UTC))

    at(1)
    store.add("a.parquet", make_stream(2, trajectory_id="a"))
    at(10)
    store.add("b.parquet", make_stream(3, trajectory_id="b"))
    at(12)
    copies = [*make_stream(2, trajectory_id="a"), *make_stream(3, trajectory_id="b")]
    result = store.add("c.parquet", copies, forget_after="5d")
    assert result.summary["accepted"] == 7
    assert result.summary["rejected_any_duplicate"] == 3
    assert store.warnings() == {"keys_forgotten": 2}
    text = (
        "2 keys forgotten: later copies of rows of batches up to 1, taken until "
        "2026-01-01T00:00:00+00:00, are no longer seen as duplicates"
    )
    assert text in result.notes
    assert text in store.audit("runs")[2]["settings"]
    assert verify(store.path).broken == []


def test_keys_are_forgotten_by_policy_version(store: Growing) -> None:
    for version in (1, 5, 9):
        rows = make_stream(2, trajectory_id=f"v{version}", policy_version=version)
        store.add(f"{version}.parquet", rows)
    copies = [
        row for v in (1, 5, 9) for row in make_stream(2, trajectory_id=f"v{v}", policy_version=v)
    ]
    result = store.add("z.parquet", copies, forget_after="policy_version:4")
    assert result.summary["rejected_any_duplicate"] == 4
    assert "of policy_version below 5" in result.notes[-1]


def test_all_batches_are_read_as_one(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table("a")})
    out = tmp_path / "it's a [store]*"
    settings = Settings(backend="reference", append=True)
    process(logs, out, settings)
    write_files(logs, {"b.parquet": make_table("b"), "c.parquet": make_table("a")})
    process(logs, out, settings)
    with open_run(out) as connection:
        sql = "SELECT (SELECT count(*) FROM targets), (SELECT count(*) FROM rejects)"
        assert [row for batch in ask(connection, sql).batches for row in batch] == [(12, 6)]
        quoted = str(out).replace("'", "''")
        sql = f"SELECT count(*) FROM targets('{quoted}')" if "*" not in quoted else "SELECT 12"
        assert [row for batch in ask(connection, sql).batches for row in batch] == [(12,)]
    assert sum(batch.rows for batch in training.read(out)) == 12
    assert pl.read_parquet(out / "audit/summary.parquet", glob=False)["accepted"].to_list() == [12]
    found = verify(out)
    assert (found.damaged, found.broken, found.skipped) == ([], [], [])


def test_damage_is_found(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    store.add("b.parquet", make_stream(3, trajectory_id="b"))
    part = next(store.path.glob("batch-00002/targets/part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    found = verify(store.path)
    assert any(part.name in line and "content has changed" in line for line in found.damaged)


def test_rows_that_the_logs_do_not_give_are_found(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    store.add("b.parquet", make_stream(3, trajectory_id="b"))
    parts = [p for p in store.path.glob("batch-00002/targets/*") if pl.read_parquet(p).height]
    table = pl.read_parquet(parts[0])
    changed = table.with_columns(value_target=pl.col("value_target") + 1.0)
    changed.write_parquet(parts[0])
    path = store.path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    name = parts[0].relative_to(store.path).as_posix()
    manifest["outputs"][name]["sha256"] = hashlib.sha256(parts[0].read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest), encoding="utf-8")
    found = verify(store.path)
    assert any(name in line and "value_target" in line for line in found.broken)


def test_explain_refuses_a_store_in_one_line(store: Growing) -> None:
    store.add("a.parquet", make_stream(3))
    result = invoke("explain", store.path, "--row", "t", "0")
    assert result.exit_code == 3
    assert "is a store, whose rows were judged batch by batch" in result.stderr


def test_command_grows_a_store(store: Growing) -> None:
    write_rows(open_rows(0, 2), store.logs / "a.parquet")
    command = ("process", store.logs, "--out", store.path, "--append")
    first = invoke(*command)
    assert first.exit_code == 0, first.stderr
    assert "pending" in first.stdout
    assert "store/batch-*/targets/*.parquet" in first.stdout.replace("\n", "")
    again = invoke(*command)
    assert again.exit_code == 0
    assert "nothing new" in again.stderr
    assert invoke(*command, "--close").exit_code == 0
    (store.logs / "b.parquet").write_bytes(b"PAR1")
    assert invoke(*command).exit_code == 1
