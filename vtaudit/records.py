"""Values passed between the stages, and the conventions that every module follows.

Time. Row t is the transition s_t -a_t-> s_{t+1}; the reward of row t is the one received after a_t,
and `terminated[t]` and `truncated[t]` say that row t was the last of its episode.

Shapes. N: rows; S: segments; T: steps of one segment. A shape stands behind a name as `# [N]`.

Order. Within a shard rows stand by (trajectory_id, step, file, row); files stand in natural order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from vtaudit.storage import Place

# boundary and source of a row without one
NOT_CUT = 255


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the log: where it is, what identifies it, and what its footer says.

    `column_bytes` are the decoded bytes of a row of each top-level column, `group_rows` the rows of
    each row group.
    """

    path: Place
    name: str
    size: int | None = None
    mtime_ns: int | None = None
    version: str | None = None
    sha256: str | None = None
    schema: pa.Schema = None
    rows: int | None = None
    column_bytes: tuple[tuple[str, float], ...] = ()
    group_rows: tuple[int, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a store knows of the log before its next batch; nothing by default.

    Attributes:
        paths: the columns of the files taken, as an expression would name them.
        types: the store's name -> canonical column -> type over the files taken.
        carried: a file that stands for the carried columns of the files taken, or none.
        leave_taken: lists the inputs with the function given and leaves out the files taken.
    """

    paths: frozenset[str] = frozenset()
    types: dict[str, dict[str, object]] = field(default_factory=dict)
    carried: tuple[InputFile, ...] = ()
    leave_taken: Callable[
        [Callable[[Sequence[Place]], list[InputFile]], Sequence[Place]], list[InputFile]
    ] = lambda list_inputs, logs: list_inputs(logs)


@dataclass(frozen=True, slots=True)
class Segments:
    """Boundaries and bootstraps of the rows of a shard, and the segments cut from them.

    Attributes:
        boundary: index into reasons.BOUNDARIES; 255 on rejected rows  # [N] uint8
        source: index into reasons.BOOTSTRAP_SOURCES; 255 on rejected rows  # [N] uint8
        next_value: V(s_{t+1}) at boundaries, 0 elsewhere  # [N] float64
        giver: the row whose value is the bootstrap, -1 where it is no row's  # [N] int64
        followed: rows whose segment goes on in another shard  # [N] bool
        missing: rows whose bootstrap is nowhere to be found  # [N] bool
        zero: truncated rows whose bootstrap is exactly 0  # [N] bool
        rows: the accepted rows in order  # [A] int64
        offsets: where each segment begins in `rows`, and its length at the end  # [S + 1] int64
    """

    boundary: NDArray[np.uint8]
    source: NDArray[np.uint8]
    next_value: NDArray[np.float64]
    giver: NDArray[np.int64]
    followed: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    zero: NDArray[np.bool_]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of each received row of a shard; all arrays are [N].

    Attributes:
        reasons: set of reasons.Reason bits  # uint64
        warnings: set of reasons.Warn bits  # uint64
        boundary: index into reasons.BOUNDARIES; 255 on rejected rows  # uint8
        source: index into reasons.BOOTSTRAP_SOURCES; 255 where none applies  # uint8
        log_ratio: as stored, NaN where there is none  # float32 or float64
        key: number of the row's key within the shard, -1 without one  # int64
        window: number of the row's window, -1 without a key  # int64
        delivery: number of the row's delivery, -1 without a key  # int64
    """

    reasons: NDArray[np.uint64]
    warnings: NDArray[np.uint64]
    boundary: NDArray[np.uint8]
    source: NDArray[np.uint8]
    log_ratio: NDArray[np.floating]
    key: NDArray[np.int64]
    window: NDArray[np.int64]
    delivery: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Verdicts:
        """Return the verdicts on some rows, flagged or listed."""
        return Verdicts(*(getattr(self, item.name)[rows] for item in fields(Verdicts)))
