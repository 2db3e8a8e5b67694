"""Values passed between the stages, and the conventions that every module follows.

Time. Row t is the transition s_t -a_t-> s_{t+1}; the reward of row t is the one received after a_t,
and `terminated[t]` and `truncated[t]` say that row t was the last of its episode.

Shapes. N: rows; S: segments; T: steps of one segment. A shape stands behind a name as `# [N]`.
"""

from __future__ import annotations
