"""Which groups train: all right, all wrong or mixed, and what each setting of `advantage.keep` does with them.

Shapes: [G] the rollouts of one group. Sources: ConciseR (arXiv 2505.21178) for `mixed`, the released code of GRPO-LEAD
(https://github.com/aeroplanepaper/GRPO-LEAD) for `some_right`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo.advantages import usable_rows
from concisecli.config import AdvantageConfig

GroupKind = Literal["all_right", "all_wrong", "mixed"]


def keep_group(total: ArrayLike, correct: ArrayLike, cfg: AdvantageConfig, usable: ArrayLike | None = None) -> bool:
    """Whether the group trains. Fewer than two usable rows never do: their reward would be its own baseline.

    mixed       some usable rows are right and some wrong (ConciseR's stage 1)
    some_right  some reward is positive, and not all are right with one and the same reward (LEAD's code: it drops a
                group whose rewards are all at most 0, or all exactly 1, but keeps all-right groups shaped by length)
    nonzero     rewards differ, so some advantage is not 0
    all         every group
    """
    reward = np.asarray(total, dtype=np.float64)
    rows = usable_rows(reward, usable)
    among, right = reward[rows], np.asarray(correct, dtype=bool)[rows]
    if len(among) < 2:
        return False
    differ = bool(among.max() != among.min())
    if cfg.keep == "mixed":
        return group_kind(right) == "mixed"
    if cfg.keep == "some_right":
        return bool(among.max() > 0) and (differ or not right.all())
    return differ if cfg.keep == "nonzero" else True


def group_kind(correct: ArrayLike) -> GroupKind:
    right = np.asarray(correct, dtype=bool)
    if right.all():
        return "all_right"
    return "mixed" if right.any() else "all_wrong"
