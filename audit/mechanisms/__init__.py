"""Query x Sampler x Noise, and the builders that make a `Defense` of them.

Beside `audit.types`, a plug-in imports from here: the parts, the builders, and the few
things that every defense and attack needs. Generalised linear models (`glm`) and
learned perturbations (`fim`) are rooms of their own below.
"""

from audit.accounting import vmf
from audit.clipping import CLIPS, clip_tree, no_clip, normalise, soft_clip
from audit.data.pool import (
    attribute_counts,
    class_means,
    class_norms,
    originals,
    which_values,
)
from audit.errors import UserError
from audit.mechanisms.noise import (
    batch_direction,
    gaussian,
    mean_field,
    none,
    von_mises_fisher,
)
from audit.mechanisms.noisy_sgd import noisy_sgd, predictor
from audit.mechanisms.output_perturbation import output_perturbation
from audit.mechanisms.query import (
    Side,
    gradient,
    masked,
    modules,
    start,
    start_masked,
)
from audit.mechanisms.sampler import SAMPLERS
from audit.models import optimizers, regressor
from audit.rng import stream

__all__ = [
    "CLIPS",
    "SAMPLERS",
    "Side",
    "UserError",
    "attribute_counts",
    "batch_direction",
    "class_means",
    "class_norms",
    "clip_tree",
    "gaussian",
    "gradient",
    "masked",
    "mean_field",
    "modules",
    "no_clip",
    "noisy_sgd",
    "none",
    "normalise",
    "optimizers",
    "originals",
    "output_perturbation",
    "predictor",
    "regressor",
    "soft_clip",
    "start",
    "start_masked",
    "stream",
    "vmf",
    "von_mises_fisher",
    "which_values",
]
