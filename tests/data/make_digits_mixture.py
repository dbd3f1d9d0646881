"""Write digits_mixture.npz: a Gaussian mixture fitted once to scikit-learn's digits.

    python -m tests.data.make_digits_mixture audit/data/digits_mixture.npz

Zeros and ones, 8x8, pixels in [0, 1]. Each class has COMPONENTS Gaussians with one
covariance, to whose diagonal LEAST is added: pixels that never change have that.
"""

import sys

import numpy as np
from sklearn.mixture import GaussianMixture

from audit.data import load

COMPONENTS, LEAST, CLASSES = 4, 1e-3, (0, 1)


def fitted():
    """Return weights [C, K], means [C, K, d] and covariances [C, d, d], float32."""
    digits = load("digits")
    x = digits.x_train.reshape(len(digits.y_train), -1).astype(np.float64)
    each = [
        GaussianMixture(
            COMPONENTS, covariance_type="tied", reg_covar=LEAST, random_state=0
        ).fit(x[digits.y_train == label])
        for label in CLASSES
    ]
    parts = {"weights": "weights_", "means": "means_", "covariances": "covariances_"}
    return {
        name: np.stack([getattr(mixture, field) for mixture in each]).astype(np.float32)
        for name, field in parts.items()
    }


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **fitted())
