"""Query x Sampler x Noise, and the builders that make a `Defense` of them.

Beside `audit.types`, a plug-in imports from here: the parts, the builders, and the few
things that every defense and attack needs. Generalised linear models (`glm`) and
learned perturbations (`fim`) are rooms of their own below.
"""

from audit.accounting import transcripts as transcripts
from audit.accounting import vmf as vmf
from audit.clipping import CLIPS as CLIPS
from audit.clipping import clip_tree as clip_tree
from audit.clipping import no_clip as no_clip
from audit.clipping import normalise as normalise
from audit.clipping import soft_clip as soft_clip
from audit.compilation import once as once
from audit.data.pool import attribute_counts as attribute_counts
from audit.data.pool import class_means as class_means
from audit.data.pool import class_norms as class_norms
from audit.data.pool import class_rows as class_rows
from audit.data.pool import hold_out as hold_out
from audit.data.pool import of_class as of_class
from audit.data.pool import originals as originals
from audit.data.pool import which_values as which_values
from audit.errors import UserError as UserError
from audit.mechanisms import denoiser as denoiser
from audit.mechanisms import kernel_prior as kernel_prior
from audit.mechanisms import shadow_models as shadow_models
from audit.mechanisms.noise import batch_direction as batch_direction
from audit.mechanisms.noise import gaussian as gaussian
from audit.mechanisms.noise import none as none
from audit.mechanisms.noise import row_directions as row_directions
from audit.mechanisms.noise import von_mises_fisher as von_mises_fisher
from audit.mechanisms.noisy_sgd import noisy_sgd as noisy_sgd
from audit.mechanisms.noisy_sgd import predictor as predictor
from audit.mechanisms.output_perturbation import (
    output_perturbation as output_perturbation,
)
from audit.mechanisms.own_loop import from_train as from_train
from audit.mechanisms.query import Side as Side
from audit.mechanisms.query import gradient as gradient
from audit.mechanisms.query import masked as masked
from audit.mechanisms.query import modules as modules
from audit.mechanisms.query import row_sizes as row_sizes
from audit.mechanisms.query import start as start
from audit.mechanisms.query import start_masked as start_masked
from audit.mechanisms.sampler import SAMPLERS as SAMPLERS
from audit.models import optimizers as optimizers
from audit.models import regressor as regressor
from audit.models.side_by_side import side_by_side as side_by_side
from audit.rng import stream as stream
