"""Upper bounds on membership inference from a privacy guarantee: TPR, advantage.

Every bound holds for any attacker whose two worlds are neighbours under the adjacency
of the guarantee. A *loss* reads like dp-accounting's PrivacyLossDistribution:
`get_delta_for_epsilon`; `rdp.GaussianPrivacy` is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.accounting import rdp

# A loss is evaluated at these; fewer of them make the bound looser, never wrong
EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 400)])


def tpr_from_epsilon(fpr: Any, epsilon: Any, delta: Any) -> np.ndarray:
    """Return the largest TPR under (epsilon, delta); arguments broadcast.

    min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR), 1) (Kairouz et al. 2015)
    """
    fpr = np.asarray(fpr, float)
    with np.errstate(over="ignore", invalid="ignore"):
        # inf * 0 is 0 here: a rate of 0 leaves delta
        grown = np.where(fpr > 0, np.exp(epsilon) * fpr, 0.0) + delta
    shrunk = 1 - np.exp(-np.asarray(epsilon, float)) * (1 - delta - fpr)
    return np.clip(np.minimum(grown, shrunk), 0.0, 1.0)


def advantage_from_epsilon(epsilon: Any, delta: Any) -> Any:
    """Return the largest TPR - FPR: (e^eps - 1 + 2 delta) / (e^eps + 1)."""
    epsilon = np.asarray(epsilon, float)
    # the same without overflow
    small = np.exp(-epsilon)
    return np.minimum((1 - small + 2 * delta * small) / (1 + small), 1.0)[()]


def tpr_from_loss(fpr: Any, loss: Any) -> np.ndarray:
    """Return the largest true-positive rate under a privacy-loss distribution.

    It is the minimum of `tpr_from_epsilon` over all (epsilon, delta) of the loss: exact
    for Gaussian losses, and up to the grid if both directions of the neighbouring
    relation have the same loss. `fpr` has any shape.
    """
    if isinstance(loss, rdp.GaussianPrivacy):
        return loss.tpr(fpr)
    fpr = np.asarray(fpr, float)
    deltas = np.array([loss.get_delta_for_epsilon(e) for e in EPSILONS])
    every = tpr_from_epsilon(fpr[..., None], EPSILONS, deltas)
    return every.min(-1)
