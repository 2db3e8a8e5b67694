"""Logs in a store: the same run as from a local copy, whatever goes wrong on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import (
    SAMPLE_LOGS,
    invoke,
    make_table,
    read_manifest,
    run_command,
    run_python,
    write_files,
)
from vtaudit import InputError, Settings, SettingsError, process, running, shards, training
from vtaudit.remote import parse_url
from vtaudit.sources import examine, list_inputs
from vtaudit.storage import parse_place

if TYPE_CHECKING:
    from s3_server import Bucket

SETTINGS = Settings(backend="numba", threads=2)
PASSWORD = "hunter2hunter2"


def read_tables(run: Path) -> dict[str, bytes]:
    """Return the bytes of every Parquet file but `runs`, which holds times."""
    files = [path for path in run.rglob("*.parquet") if path.name != "runs.parquet"]
    assert len(files) > 5
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def read_everything(run: Path) -> bytes:
    """Return all bytes of a directory, hidden files and names included."""
    paths = sorted(path for path in run.rglob("*") if path.is_file())
    return b"\n".join([*(str(path).encode() for path in paths), *(p.read_bytes() for p in paths)])


def read_files(run: Path) -> dict[str, tuple[str, str | None]]:
    """Return status and error of each file of the log."""
    table = pq.read_table(run / "audit" / "files.parquet").to_pylist()
    return {row["path"]: (row["status"], row["error"]) for row in table}


def without_times(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without where the log was, when it was written, and how long it took."""
    timed = ("audit/runs.parquet", "audit.duckdb")
    inputs = [{**entry, "mtime_ns": None} for entry in manifest["inputs"]]
    outputs = {name: each for name, each in manifest["outputs"].items() if name not in timed}
    return {**manifest, "inputs": inputs, "outputs": outputs, "logs": None}


def test_run_has_the_bytes_of_the_local_one(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(SAMPLE_LOGS, "train/logs")
    local = process(SAMPLE_LOGS, tmp_path / "local", SETTINGS)
    remote = process(url, tmp_path / "remote", SETTINGS)
    assert remote.run_id == local.run_id
    assert remote.summary == local.summary
    assert remote.summary["accepted"] == 10_600
    assert read_tables(tmp_path / "remote") == read_tables(tmp_path / "local")
    manifest = read_manifest(tmp_path / "remote")
    assert without_times(manifest) == without_times(read_manifest(tmp_path / "local"))
    assert manifest["logs"] == [url]
    assert all(entry["mtime_ns"] > 1.7e18 for entry in manifest["inputs"])


def test_listing_is_that_of_a_local_copy(bucket: Bucket, tmp_path: Path) -> None:
    names = [
        "w_10.parquet",
        "w_2.parquet",
        "deep/er/a.parquet",
        "deep.parquet/b.parquet",
        "space and #50%+*[x]/ü.parquet",
        "_SUCCESS",
        "notes.txt",
        "_temporary/c.parquet",
        ".hidden/d.parquet",
        "deep/_e.parquet",
        "deep/.f.parquet",
        "g.parquet.crc",
    ]
    files = {name: make_table(name) if name.endswith(".parquet") else b"x" for name in names}
    local = write_files(tmp_path / "logs", files)
    url = bucket.upload(local, "logs")
    bucket.upload(local, "logs2")
    bucket.put("logs/empty/", b"")
    found = list_inputs([parse_place(f"{url}/")])
    wanted = [
        "deep.parquet/b.parquet",
        "deep/er/a.parquet",
        "space and #50%+*[x]/ü.parquet",
        "w_2.parquet",
        "w_10.parquet",
    ]
    assert [file.name for file in found] == wanted
    assert [file.name for file in list_inputs([local])] == wanted
    digests = [examine(file).sha256 for file in found]
    assert digests == [examine(file).sha256 for file in list_inputs([local])]
    assert len(set(digests)) == len(wanted)
    skipped = [
        json.loads(invoke("inspect", log, "--json").stdout)["skipped"] for log in (url, local)
    ]
    assert skipped[0] == {".txt": 1, ".crc": 1, "no suffix": 1, "hidden .parquet": 4}
    assert skipped[1] == skipped[0]


def test_logs_are_mixed_when_several_are_given(bucket: Bucket, tmp_path: Path) -> None:
    tables = {f"{name}.parquet": make_table(name) for name in "abc"}
    one = write_files(tmp_path / "one" / "logs", {"a.parquet": tables["a.parquet"]})
    two = write_files(tmp_path / "two" / "logs", {"b.parquet": tables["b.parquet"]})
    three = write_files(tmp_path / "three", {"c.parquet": tables["c.parquet"]}) / "c.parquet"
    url = bucket.upload(two, "far/logs")
    bucket.put("c.parquet", three.read_bytes())
    local = process([one, two, three], tmp_path / "local", SETTINGS)
    mixed = process([one, url, f"{bucket.url}/c.parquet"], tmp_path / "mixed", SETTINGS)
    names = ["c.parquet/c.parquet", "logs-2/b.parquet", "logs/a.parquet"]
    assert sorted(read_files(tmp_path / "mixed")) == names
    assert mixed.run_id == local.run_id
    assert read_tables(tmp_path / "mixed") == read_tables(tmp_path / "local")
    assert read_manifest(tmp_path / "mixed")["logs"] == [
        str(one),
        url,
        f"{bucket.url}/c.parquet",
    ]


def test_whole_bucket_is_a_log(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(SAMPLE_LOGS, "deep")
    process(bucket.url, tmp_path / "run", SETTINGS)
    assert all(name.startswith("deep/actor_") for name in read_files(tmp_path / "run"))


def test_bad_objects_are_counted_and_named_while_the_run_completes(
    bucket: Bucket, tmp_path: Path
) -> None:
    whole = write_files(tmp_path / "logs", {"a.parquet": make_table()}) / "a.parquet"
    content = whole.read_bytes()
    page = bytearray(content)
    checked = tmp_path / "checked.parquet"
    pq.write_table(
        make_table("b"), checked, write_page_checksum=True, compression="none", use_dictionary=False
    )
    page = bytearray(checked.read_bytes())
    place = page.index(b"u" + b"\x01\x00\x00\x00" + b"u")
    page[place] ^= 1
    objects = {
        "a.parquet": content,
        "cut.parquet": content[:-100],
        "empty.parquet": b"",
        "html.parquet": b"<html>not found</html>",
        "denied.parquet": content,
        "gone.parquet": content,
        "page.parquet": bytes(page),
    }
    for name, body in objects.items():
        bucket.put(f"logs/{name}", body)
    bucket.server.denied.add(bucket.path("logs/denied.parquet"))
    bucket.server.before_read[bucket.path("logs/gone.parquet"), 3] = lambda: bucket.remove(
        "logs/gone.parquet"
    )
    out = tmp_path / "run"
    result = invoke("process", f"{bucket.url}/logs", "--out", out, "--json")
    assert result.exit_code == 1, result.output
    summary = json.loads(result.stdout)["summary"]
    assert (summary["received"], summary["accepted"]) == (6, 6)
    assert (summary["files"], summary["files_unreadable"]) == (7, 6)
    found = read_files(out)
    assert found.pop("a.parquet") == ("read", None)
    assert {status for status, _ in found.values()} == {"unreadable"}
    errors = {name: error for name, (_, error) in found.items()}
    assert errors["empty.parquet"] == "the file is empty"
    assert errors["html.parquet"] == "not Parquet but HTML or XML"
    assert "Parquet magic bytes not found" in str(errors["cut.parquet"])
    assert "Forbidden" in str(errors["denied.parquet"])
    assert errors["gone.parquet"] == "no such object"
    assert "CRC checksum verification failed" in str(errors["page.parquet"])
    for name, error in errors.items():
        assert f"{name}: {error}" in str(read_manifest(out)["notes"])


@pytest.mark.parametrize("read", [2, 3, 4])
def test_object_that_changes_on_the_way_is_unreadable(
    read: int, bucket: Bucket, tmp_path: Path
) -> None:
    logs = write_files(
        tmp_path / "logs",
        {
            "a.parquet": make_table("a"),
            "b.parquet": make_table("b"),
            "other.parquet": make_table("c"),
        },
    )
    other = logs / "other.parquet"
    content = other.read_bytes()
    other.unlink()
    assert len(content) == (logs / "b.parquet").stat().st_size
    bucket.upload(logs, "logs")
    bucket.server.before_read[bucket.path("logs/b.parquet"), read] = lambda: bucket.put(
        "logs/b.parquet", content
    )
    result = process(f"{bucket.url}/logs", tmp_path / "run", SETTINGS)
    status, error = read_files(tmp_path / "run")["b.parquet"]
    assert status == "unreadable"
    assert "changed while it was read" in str(error)
    assert result.summary["received"] == 6
    assert bucket.server.before_read == {}


def test_content_is_fetched_once_and_of_needed_columns_once_more(
    bucket: Bucket, tmp_path: Path
) -> None:
    rows = pq.read_table(SAMPLE_LOGS)
    noise = pa.array([bytes([k % 251, k % 241, k % 239]) * 300 for k in range(rows.num_rows)])
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "a.parquet"
    pq.write_table(rows, path, row_group_size=4000, use_dictionary=False)
    needed = path.stat().st_size
    table = rows.append_column("observations", noise)
    pq.write_table(table, path, row_group_size=4000, use_dictionary=False, compression="none")
    size = path.stat().st_size
    assert size > 10 * needed
    bucket.upload(folder, "logs")
    process(f"{bucket.url}/logs", tmp_path / "run", SETTINGS)
    sent = bucket.server.sent[bucket.path("logs/a.parquet")]
    assert size < sent < 1.5 * size
    # 2 chunks to hash, the footer twice, 3 row groups in at most 2 ranges each
    assert bucket.server.reads[bucket.path("logs/a.parquet")] <= 2 + 2 + 6


def test_resumed_run_has_the_bytes_of_an_undisturbed_one(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_ROWS", 3000)
    url = bucket.upload(SAMPLE_LOGS, "logs")
    process(SAMPLE_LOGS, tmp_path / "local", SETTINGS)
    write = running.write_shard

    def write_two(plan: Any, shard: Any, work: Path, number: int, **more: Any) -> list[Path]:
        if number == 2:
            raise InputError("the disk is full")
        return write(plan, shard, work, number, **more)

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_shard", write_two)
        with pytest.raises(InputError, match="the disk is full"):
            process(url, tmp_path / "run", Settings(backend="numba", threads=1))
    written = []
    monkeypatch.setattr(
        running,
        "write_shard",
        lambda *given, **more: written.append(given[3]) or write(*given, **more),
    )
    process(url, tmp_path / "run", Settings(backend="numba", threads=1, resume=True))
    assert 2 in written
    assert 0 not in written
    assert read_tables(tmp_path / "run") == read_tables(tmp_path / "local")


def test_scores_may_stand_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    scores = pq.read_table(SAMPLE_LOGS, columns=["trajectory_id", "step", "value"])
    scores = scores.group_by(["trajectory_id", "step"]).aggregate([("value", "max")])
    write_files(
        tmp_path / "scores",
        {"s.parquet": scores.rename_columns(["trajectory_id", "step", "value"])},
    )
    url = bucket.upload(tmp_path / "scores", "scores")
    logs = bucket.upload(SAMPLE_LOGS, "logs")
    runs = {}
    for place in (str(tmp_path / "scores"), url):
        settings = Settings(backend="numba", scores=place)
        runs[place] = process(logs, tmp_path / f"run-{len(runs)}", settings).run_id
    assert runs[url] == runs[str(tmp_path / "scores")]
    assert read_tables(tmp_path / "run-0") == read_tables(tmp_path / "run-1")
    assert read_manifest(tmp_path / "run-1")["settings"]["scores"] == url
    assert invoke("verify", tmp_path / "run-1").exit_code == 0


def test_run_is_verified_and_explained_from_the_store(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(SAMPLE_LOGS, "logs")
    process(url, tmp_path / "run", SETTINGS)
    verified = invoke("verify", tmp_path / "run", "--json")
    assert verified.exit_code == 0, verified.output
    assert json.loads(verified.stdout)["skipped"] == []
    key = ("--row", "actor_0/env_0", "38")
    explained = invoke("explain", tmp_path / "run", *key)
    assert explained.exit_code == 0, explained.output
    moved = invoke("explain", tmp_path / "run", *key, "--logs", SAMPLE_LOGS)
    assert explained.stdout == moved.stdout
    assert next(iter(training.read(tmp_path / "run", batch_size=4)))["value_target"].shape == (4,)
    bucket.remove("logs")
    verified = invoke("verify", tmp_path / "run")
    assert verified.exit_code == 0, verified.output
    assert f"{url} is not there; say --logs DIR" in " ".join(verified.output.split())
    explained = invoke("explain", tmp_path / "run", *key)
    assert explained.exit_code == 3
    assert f"{url} is not there; say --logs DIR" in explained.stderr
    assert invoke("verify", tmp_path / "run", "--logs", SAMPLE_LOGS).exit_code == 0


def test_changed_object_is_not_the_log_of_the_run(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(SAMPLE_LOGS, "logs")
    process(url, tmp_path / "run", SETTINGS)
    name = "actor_0_part_0.parquet"
    bucket.put(f"logs/{name}", (SAMPLE_LOGS / "actor_1_part_0.parquet").read_bytes())
    verified = invoke("verify", tmp_path / "run")
    assert verified.exit_code == 3
    assert f"{name} has changed since the run read it" in " ".join(verified.output.split())


def test_object_unreadable_then_stays_so_when_the_run_is_verified(
    bucket: Bucket, tmp_path: Path
) -> None:
    url = bucket.upload(
        write_files(tmp_path / "logs", {f"{n}.parquet": make_table(n) for n in "ab"}), "logs"
    )
    path = bucket.path("logs/b.parquet")
    bucket.server.before_read[path, 3] = lambda: bucket.server.denied.add(path)
    assert process(url, tmp_path / "run", SETTINGS).summary["received"] == 6
    bucket.server.denied.remove(path)
    verified = invoke("verify", tmp_path / "run")
    assert verified.exit_code == 0, verified.output
    explained = invoke("explain", tmp_path / "run", "--at", "b.parquet:0")
    assert explained.exit_code == 3
    assert "b.parquet: unreadable, so its rows are unknown: " in explained.stderr


def test_inspection_is_that_of_a_local_copy(bucket: Bucket) -> None:
    url = bucket.upload(SAMPLE_LOGS, "logs")
    found = [json.loads(invoke("inspect", log, "--json").stdout) for log in (url, SAMPLE_LOGS)]
    assert found[0].pop("logs") == [url]
    assert found[0]["suggestion"].pop("command").startswith(f"vtaudit process {url} --out run")
    found[1].pop("logs")
    found[1]["suggestion"].pop("command")
    assert found[0] == found[1]


def test_secrets_stand_nowhere(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(SAMPLE_LOGS, "logs")
    bucket.server.denied.add(bucket.path("logs/actor_0_part_0.parquet"))
    run = tmp_path / "run"
    done = [
        run_command("process", url, "--out", run, env=bucket.env),
        run_command("inspect", url, "--json", env=bucket.env),
        run_command("verify", run, "--json", env=bucket.env),
        run_command("process", url, "--out", tmp_path / "no", "--scores", url, env=bucket.env),
    ]
    assert [each.returncode for each in done] == [1, 1, 0, 3], [each.stderr for each in done]
    told = "".join(each.stdout + each.stderr for each in done)
    everything = read_everything(tmp_path).decode("latin-1") + told
    assert url in everything
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert bucket.env[name] not in everything


def test_store_that_cannot_be_reached_is_told_without_its_password(
    bucket: Bucket, tmp_path: Path
) -> None:
    endpoint = f"http://proxy:{PASSWORD}@127.0.0.1:1"
    env = {**bucket.env, "AWS_ENDPOINT_URL": endpoint, "AWS_MAX_ATTEMPTS": "1"}
    done = run_command("process", "s3://bucket/logs", "--out", tmp_path / "run", env=env)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("vtaudit: s3://bucket/logs: cannot be listed: ")
    assert PASSWORD not in done.stderr


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            f'no "http://me:{PASSWORD}@host:1/a/b?X={PASSWORD}&y" there',
            'no "http://host:1/a/b" there',
        ),
        (f"403 of https://host/a?sig={PASSWORD}, after 2", "403 of https://host/a after 2"),
        (f"s3://me:a/{PASSWORD}@bucket/key", "s3://bucket/key"),
        ("plain\ntext?", "plain text?"),
    ],
)
def test_error_of_a_store_is_told_without_credentials(
    raised: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(raised)

    store = fsspec.filesystem("memory")
    store.pipe_file("/far/a.parquet", b"x")
    store.pipe_file("/far/b.parquet", b"x")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "info", fail)
            result = invoke("process", "memory://far", "--out", tmp_path / "run")
            assert result.stderr == f"vtaudit: memory://far: cannot be listed: {told}\n"
        monkeypatch.setattr(type(store), "open", fail)
        errors = [examine(file).error for file in list_inputs([parse_place("memory://far")])]
        assert errors == [told, told]
    finally:
        store.rm("/far", recursive=True)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA1:{PASSWORD}@bucket/logs",
        f"s3://AKIA1:a/{PASSWORD}@bucket/logs",
        f"s3://AKIA1%3A{PASSWORD}%40bucket/logs",
        f"https://user:{PASSWORD}@host/a.parquet",
        f"https://host/a.parquet?X-Amz-Signature={PASSWORD}",
        f"s3://bucket/logs?secret={PASSWORD}",
        f"simplecache::s3://AKIA1:{PASSWORD}@bucket/logs",
        f"zip://x::s3://key:{PASSWORD}@bucket/logs.zip",
    ],
)
def test_url_with_credentials_is_refused_and_never_told(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = tmp_path / "config.toml"
    config.write_text(f'scores = "{url}"\n', encoding="utf-8")
    for arguments in (
        ("process", url, "--out", out),
        ("process", SAMPLE_LOGS, "--out", out, "--scores", url),
        ("process", SAMPLE_LOGS, "--out", out, "--config", config),
        ("process", SAMPLE_LOGS, "--out", url),
        ("inspect", url),
        ("query", url),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert PASSWORD not in result.output
        assert "://...: holds a password or a query" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == [config]
    for ask in (lambda: process(url, out), lambda: Settings(scores=url)):
        with pytest.raises(SettingsError) as refused:
            ask()
        assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("simplecache::s3://bucket/logs", "is a chain of URLs"),
        ("zip://a.parquet::s3://bucket/logs.zip", "is a chain of URLs"),
        ("file:///logs", "is a local file; give its path"),
        ("s4://bucket/logs", "no kind of store is named s4://"),
    ],
)
def test_url_that_names_no_store_is_refused(url: str, told: str, tmp_path: Path) -> None:
    result = invoke("process", url, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    "url", ["s3://bucket/a:b@c/logs", "https://host:8080/logs", "abfs://logs@account.dfs.core/x"]
)
def test_url_without_credentials_is_taken(url: str) -> None:
    assert parse_url(url).url == url


def test_run_in_a_store_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    for arguments in (
        ("process", SAMPLE_LOGS, "--out", f"{bucket.url}/run"),
        ("query", f"{bucket.url}/run"),
        ("verify", f"{bucket.url}/run"),
        ("explain", f"{bucket.url}/run", "--at", "a.parquet:0"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert "a run must be a local directory" in result.stderr
    with pytest.raises(SettingsError, match="a run must be a local directory"):
        training.read(f"{bucket.url}/run")


def test_missing_extra_is_told_with_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['s3fs'] = None;"
        "from vtaudit.cli import main; main(prog_name='vtaudit')"
    )
    for command in (("process", "s3://b/logs", "--out", tmp_path / "run"), ("inspect", "s3://b/l")):
        done = run_python(code, *command)
        assert done.returncode == 3, done.stderr
        assert "pip install 'vtaudit[remote]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_what_is_not_there_is_told(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("logs/readme.txt", b"x")
    for url, told in (
        (f"{bucket.url}/nothing", f"{bucket.url}/nothing: no such object or prefix"),
        (f"{bucket.url}/logs", f"{bucket.url}/logs: no *.parquet file in it"),
        ("s3://no-such-bucket/logs", "s3://no-such-bucket/logs: no such object or prefix"),
    ):
        result = invoke("process", url, "--out", tmp_path / "run")
        assert result.exit_code == 3
        assert told in result.stderr
    bucket.server.denied.add(f"/{bucket.name}")
    result = invoke("process", f"{bucket.url}/logs", "--out", tmp_path / "run")
    assert result.exit_code == 3
    assert f"{bucket.url}/logs: cannot be listed: " in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_store_without_credentials_is_told_in_one_line(bucket: Bucket, tmp_path: Path) -> None:
    env = {name: "" for name in bucket.env if "KEY" in name}
    env |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    env["AWS_ENDPOINT_URL"] = bucket.server.url
    done = run_command("process", f"{bucket.url}/logs", "--out", tmp_path / "run", env=env)
    assert done.returncode == 3, done.stderr
    assert "cannot be listed: Unable to locate credentials" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_other_stores_work_alike(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for path in SAMPLE_LOGS.glob("*.parquet"):
        store.pipe_file(f"/far/logs/{path.name}", path.read_bytes())
    try:
        remote = process("memory://far/logs", tmp_path / "run", SETTINGS)
        assert invoke("verify", tmp_path / "run").exit_code == 0
    finally:
        store.rm("/far", recursive=True)
    local = process(SAMPLE_LOGS, tmp_path / "local", SETTINGS)
    assert remote.run_id == local.run_id
    assert read_tables(tmp_path / "run") == read_tables(tmp_path / "local")
