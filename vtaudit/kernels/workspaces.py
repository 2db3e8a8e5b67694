"""Words in which programs of one call tell each other what they carry.

Every call has a tag of its own, so a workspace serves call after call on its stream without being
cleared. What a graph captures has a workspace of its own, cleared at each replay: a replay repeats
the tag.
"""

from __future__ import annotations

import torch

from vtaudit.kernels.launches import Launch
from vtaudit.kernels.triton_words import NONE, TREE, TREE_WIDTH

LAST_TAG = 2**31 - 1

_workspaces: dict[tuple[int, int], torch.Tensor] = {}
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
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.int64, device=device), 1 << 32
    tag = _next_tag()
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    words = _workspaces.get(key)
    if words is None or len(words) < size:
        words = torch.zeros(size, dtype=torch.int64, device=device)
        _workspaces[key] = words
    return words, tag << 32


def _next_tag() -> int:
    global _last_tag
    if _last_tag == LAST_TAG:
        _workspaces.clear()
        _last_tag = 0
    _last_tag += 1
    return _last_tag
