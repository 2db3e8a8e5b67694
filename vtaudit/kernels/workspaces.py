"""Words in which programs of one call tell each other what they carry, and places to count in.

Every call has a tag of its own, so words serve call after call on their stream without being
cleared. What a graph captures has words of its own, cleared at each replay: a replay repeats the
tag. Places to count in are all 0 between calls.
"""

from __future__ import annotations

import torch

from vtaudit.kernels.launches import Launch
from vtaudit.kernels.triton_counts import CLIP_SLOTS
from vtaudit.kernels.triton_words import NONE, TREE, TREE_WIDTH

LAST_TAG = 2**31 - 1

_workspaces: dict[tuple[int, int], torch.Tensor] = {}
_slots: dict[tuple[int, int], torch.Tensor] = {}
_last_tag = 0


def find_workspace(
    launch: Launch, scans: int, is_wide: bool, device: torch.device
) -> tuple[torch.Tensor | None, int]:
    """Return words for a call on the current stream, and its tag in the upper half of a word.

    Args:
        launch: see `Launch`.
        scans: 1 for Delta, 2 for Delta and trace_length.
        is_wide: a number takes two words.
        device: where the words lie.
    """
    if launch.carry == NONE:
        return None, 0
    numbers = launch.panels * (launch.chunks + 1)
    if launch.carry == TREE:
        numbers = launch.panels * (2 * launch.chunks + -(-launch.chunks // TREE_WIDTH))
    size = 1 + scans * numbers * (2 if is_wide else 1)
    key = _find_stream(device)
    if key is None:
        return torch.zeros(size, dtype=torch.int64, device=device), 1 << 32
    tag = _next_tag()
    words = _workspaces.get(key)
    if words is None or len(words) < size:
        words = torch.zeros(size, dtype=torch.int64, device=device)
        _workspaces[key] = words
    return words, tag << 32


def take_slots(device: torch.device) -> torch.Tensor:
    """Return places to count in, all 0, for a call on the current stream."""
    key = _find_stream(device)
    slots = None if key is None else _slots.pop(key, None)
    if slots is None:
        slots = torch.zeros((CLIP_SLOTS, 4), dtype=torch.int64, device=device)
    return slots


def give_slots(slots: torch.Tensor) -> None:
    """Keep places for the next call on the current stream, whose work clears them again."""
    key = _find_stream(slots.device)
    if key is not None:
        _slots[key] = slots


def _find_stream(device: torch.device) -> tuple[int, int] | None:
    """Return which stream is current; None where memory is not kept from call to call."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    return device.index, torch.cuda.current_stream(device).cuda_stream


def _next_tag() -> int:
    global _last_tag
    if _last_tag == LAST_TAG:
        _workspaces.clear()
        _last_tag = 0
    _last_tag += 1
    return _last_tag
