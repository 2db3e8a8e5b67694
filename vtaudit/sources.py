"""List and fingerprint the input files; open each one alone; decode it in batches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from vtaudit.errors import UnreadableError
from vtaudit.ranges import is_text
from vtaudit.records import InputFile
from vtaudit.storage import Place, Status, last_name, list_parquet, open_binary, read_status

BATCH_ROWS = 131_072
# buffers of lists grow by copying: in large batches that takes half the time of decoding again
NESTED_BATCH_ROWS = 32_768
HASH_CHUNK_BYTES = 1 << 20
# of a remote file, where each chunk is a request
REMOTE_CHUNK_BYTES = 8 << 20
CHANGED = "the file changed while it was read; run again once it is whole"
FOREIGN_STARTS = {
    b"\x1f\x8b": "gzip data",
    b"ARROW1": "an Arrow IPC file",
    b"version https://git-lfs": "a Git LFS pointer",
    b"<": "HTML or XML",
    b"{": "JSON",
}


def list_inputs(logs: Sequence[Place]) -> list[InputFile]:
    """Return every *.parquet at or below `logs`, in natural order of their names.

    Names and directories that begin with "." or "_" are left out, and symbolic links to
    directories are not followed. A name is relative to its LOGS argument; with several arguments
    their last path component, made unique, comes first.

    Raises:
        InputError: an argument does not exist, or no Parquet file stands below it.
    """
    found = [
        InputFile(place, f"{label}/{name}" if label else name)
        for log, label in zip(logs, _labels(logs), strict=True)
        for place, name in list_parquet(log)
    ]
    return sorted(found, key=lambda file: natural_key(file.name))


def _labels(logs: Sequence[Place]) -> list[str]:
    if len(logs) == 1:
        return [""]
    labels: list[str] = []
    for log in logs:
        last = last_name(log) or "log"
        label, copy = last, 2
        while label in labels:
            label, copy = f"{last}-{copy}", copy + 1
        labels.append(label)
    return labels


def natural_key(name: str) -> tuple[list[str | int], bytes]:
    """Return a sort key in which w_2 stands before w_10; ties go by bytes."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name.encode()


def examine_all(files: Sequence[InputFile], threads: int | None) -> list[InputFile]:
    """Return the files as `examine` does, several at a time."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(examine, files))


def examine(file: InputFile, *, digest: bool = True) -> InputFile:
    """Return `file` with size, hash, schema and row count, or with the error that prevents it.

    Without `digest` there is no hash, and only the footer is read.
    """
    try:
        status = read_status(file.path)
        file = replace(file, size=status.size, mtime_ns=status.mtime_ns, version=status.version)
        if digest:
            file = replace(file, sha256=hash_file(file.path))
        with _open(file.path) as parquet:
            names = parquet.schema_arrow.names
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise UnreadableError(f"two columns are named {', '.join(twice)}")
            meta = parquet.metadata
            groups = [meta.row_group(k) for k in range(meta.num_row_groups)]
            return replace(
                file,
                schema=parquet.schema_arrow,
                rows=meta.num_rows,
                column_bytes=_column_bytes(groups[0]) if groups else (),
                group_rows=tuple(group.num_rows for group in groups),
            )
    except UnreadableError as error:
        return replace(file, error=str(error))
    except (OSError, ValueError, pa.ArrowException) as error:
        return replace(file, error=_describe(file, error))


def _column_bytes(group: pq.RowGroupMetaData) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for k in range(group.num_columns):
        column = group.column(k)
        name = column.path_in_schema.partition(".")[0]
        share = column.total_uncompressed_size / max(group.num_rows, 1)
        found[name] = found.get(name, 0.0) + share
    return tuple(found.items())


@contextmanager
def _open(place: Place, coded: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file: by its path where PyArrow can, which takes only UTF-8.

    Of a remote file neighboring columns are fetched together, for each call that reads.
    """
    is_local = isinstance(place, Path)
    with ExitStack() as stack:
        by_path = is_local and is_text(str(place))
        source = place if by_path else stack.enter_context(open_binary(place))
        yield stack.enter_context(
            pq.ParquetFile(
                source,
                page_checksum_verification=True,
                pre_buffer=not is_local,
                read_dictionary=list(coded),
            )
        )


def hash_file(place: Place) -> str:
    """Return the SHA-256 of a file\'s content."""
    digest = hashlib.sha256()
    size = HASH_CHUNK_BYTES if isinstance(place, Path) else REMOTE_CHUNK_BYTES
    with open_binary(place) as stream:
        while chunk := stream.read(size):
            digest.update(chunk)
    return digest.hexdigest()


def _describe(file: InputFile, error: Exception) -> str:
    """Return the error in one line, with what the file really is where its first bytes tell."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.replace(str(file.path), file.name)
    try:
        if file.size is not None and _has_changed(file):
            return CHANGED
        with open_binary(file.path) as stream:
            start = stream.read(32)
    except OSError:
        return text
    if not start:
        return "the file is empty"
    kinds = [kind for mark, kind in FOREIGN_STARTS.items() if start.startswith(mark)]
    return f"not Parquet but {kinds[0]}" if kinds else text


def read_batches(
    file: InputFile,
    columns: Sequence[str],
    *,
    rows: tuple[int, int] | None = None,
    coded: Sequence[str] = (),
    at_once: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Decode `columns` of one file in batches, page checksums verified where there are any.

    Args:
        file: as `examine` found it.
        columns: what to decode.
        rows: the first row and the one after the last; all by default. Only their row groups are
            decoded.
        coded: text columns to give as dictionaries, as they mostly are on disk.
        at_once: give the rows in as few batches as there can be.

    Raises:
        UnreadableError: a page cannot be decoded, or the file changed while it was read.
    """
    start, stop = rows or (0, file.rows or 0)
    try:
        with _open(file.path, coded) as parquet:
            wanted = list(columns) or parquet.schema_arrow.names[:1]
            groups, first = _find_groups(parquet.metadata, start, stop)
            size = stop - first if at_once and start - first <= BATCH_ROWS else BATCH_ROWS
            if any(pat.is_nested(parquet.schema_arrow.field(name).type) for name in wanted):
                size = min(size, NESTED_BATCH_ROWS)
            for batch in _decode(parquet, file, groups, wanted, size):
                after = first + batch.num_rows
                if after > start:
                    skipped = max(start - first, 0)
                    yield batch.slice(skipped, min(after, stop) - first - skipped)
                if after >= stop:
                    break
                first = after
        has_changed = _has_changed(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UnreadableError(_describe(file, error)) from None
    if has_changed:
        raise UnreadableError(CHANGED)


def _find_groups(metadata: pq.FileMetaData, start: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows start to stop, and the first row of the first one."""
    ends = np.cumsum([metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)])
    low, high = np.searchsorted(ends, start, "right"), np.searchsorted(ends, stop, "left")
    groups = list(range(int(low), min(int(high) + 1, len(ends))))
    return groups, int(ends[low - 1]) if low else 0


def _has_changed(file: InputFile) -> bool:
    return read_status(file.path) != Status(file.size, file.mtime_ns, file.version)


def _decode(
    parquet: pq.ParquetFile, file: InputFile, groups: list[int], columns: list[str], size: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `size` rows; of a remote file by row group, as those wait in memory."""
    together = [groups] if isinstance(file.path, Path) else [[group] for group in groups]
    for each in together:
        yield from parquet.iter_batches(
            max(size, 1), row_groups=each, columns=columns, use_threads=False
        )


def read_row(file: InputFile, row: int) -> dict[str, object]:
    """Return every column of one row as logged; only its row group is decoded.

    Raises:
        UnreadableError: the row group cannot be decoded.
    """
    try:
        with _open(file.path) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if row < rows:
                    found: dict[str, object] = (
                        parquet.read_row_group(group).slice(row, 1).to_pylist()[0]
                    )
                    return found
                row -= rows
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UnreadableError(f"{file.name}: {_describe(file, error)}") from None
    raise UnreadableError(f"{file.name}: the file changed while it was read")
