"""Mean and standard deviation that do not depend on the order of the values."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from concisecli.config import StdKind


def mean_and_std(values: NDArray[np.float64], std: StdKind) -> tuple[float, float]:
    """Mean and standard deviation in two passes of exact sums, so that the order of the values changes nothing.

    sample: n - 1 in the denominator, as torch.std and verl have it; population: n. Needs two values for `sample`.
    """
    mean = math.fsum(values) / len(values)
    squares = math.fsum((float(value) - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - (std == "sample")))
