"""Write lpips_reference.json: what the reference `lpips` package says of seeded inputs.

    python -m tests.statistics.make_lpips_reference OUT_JSON

Needs `lpips` 0.1.4 with torch and torchvision, and a network the first time:
torchvision downloads the weights of AlexNet.
"""

import json
import sys
from pathlib import Path

import numpy as np

SIZES = [(32, 32), (64, 64), (100, 60), (31, 47)]


def inputs(height, width, seed):
    """Return the pair the test draws as well: [H, W, 3] in [-1, 1]."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1, 1, (height, width, 3)).astype(np.float32)
    b = np.clip(a + rng.normal(0, 0.3, a.shape), -1, 1).astype(np.float32)
    return a, b


def reference():
    """Return the package's distance of two such images."""
    import lpips
    import torch

    net = lpips.LPIPS(net="alex", verbose=False)
    planes = lambda image: torch.from_numpy(image).permute(2, 0, 1)[None]
    return lambda a, b: float(net(planes(a), planes(b)).detach())


if __name__ == "__main__":
    distance, rows = reference(), []
    for seed, (height, width) in enumerate(SIZES):
        value = distance(*inputs(height, width, seed))
        rows.append({"seed": seed, "height": height, "width": width, "lpips": value})
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")
