"""Write lpips_reference.json: what the reference `lpips` package says of seeded inputs.

    python tests/statistics/make_lpips_reference.py ALEX_NPZ OUT_JSON

Needs torch and `lpips` (0.1.4). The package takes its AlexNet trunk from torchvision; a
stand-in for torchvision below builds that network from an npz of torchvision's weights
(names `features.0.weight` ...), so that no download happens. The arithmetic, the input
scaling and the heads are the reference package's own.
"""

import json
import sys
import types

import numpy as np

SIZES = [(32, 32), (64, 64), (100, 60), (31, 47)]


def torchvision_of(path):
    """Return a module that has torchvision.models.alexnet and nothing else."""
    import torch

    held = np.load(path)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 11, 4, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2),
        torch.nn.Conv2d(64, 192, 5, 1, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2),
        torch.nn.Conv2d(192, 384, 3, 1, 1), torch.nn.ReLU(),
        torch.nn.Conv2d(384, 256, 3, 1, 1), torch.nn.ReLU(),
        torch.nn.Conv2d(256, 256, 3, 1, 1), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2),
    )  # fmt: skip
    for i in (0, 3, 6, 8, 10):
        layers[i].weight.data = torch.from_numpy(held[f"features.{i}.weight"])
        layers[i].bias.data = torch.from_numpy(held[f"features.{i}.bias"])
    module, models = types.ModuleType("torchvision"), types.ModuleType("models")
    models.alexnet = lambda **_: types.SimpleNamespace(features=layers)
    module.models = models
    sys.modules.update({"torchvision": module, "torchvision.models": models})
    return module


def inputs(height, width, seed):
    """Return the pair the test draws as well: [H, W, 3] in [-1, 1]."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1, 1, (height, width, 3)).astype(np.float32)
    b = np.clip(a + rng.normal(0, 0.3, a.shape), -1, 1).astype(np.float32)
    return a, b


def main(weights, out):
    """Compute and write."""
    torchvision_of(weights)
    import lpips
    import torch

    net = lpips.LPIPS(net="alex", verbose=False)
    rows = []
    for seed, (height, width) in enumerate(SIZES):
        pair = inputs(height, width, seed)
        a, b = (torch.from_numpy(v).permute(2, 0, 1)[None] for v in pair)
        with torch.no_grad():
            value = float(net(a, b))
        rows.append({"seed": seed, "height": height, "width": width, "lpips": value})
    with open(out, "w") as file:
        json.dump(rows, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
