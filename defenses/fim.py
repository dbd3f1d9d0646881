"""FIM: perturb each gradient so that its clipped sum leaks less (Edmunds 2024)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from audit.mechanisms import (
    SAMPLERS,
    Side,
    gaussian,
    gradient,
    noisy_sgd,
    optimizers,
    soft_clip,
    start_masked,
    stream,
)
from audit.mechanisms.fim import networks
from audit.mechanisms.fim.fitters import constant, network
from audit.mechanisms.fim.objectives import Schedule
from audit.mechanisms.fim.refit import first_fit, pick, refresher, share
from audit.mechanisms.stepwise import Preparation, PublicFit
from audit.types import (
    Count,
    Defense,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Optimizer,
    Positive,
    Public,
    Refresh,
    Sampling,
    Task,
)


def fim(
    task: Task,
    *,
    perturbation: Literal[
        "constant", "constant_direct", "network", "network_static"
    ] = "constant",
    objective: Literal[
        "replacement", "perturbation", "clipped", "snr", "snr_gradient"
    ] = "snr_gradient",
    architecture: Literal["cnn", "mlp"] = "cnn",
    share_steps: NonNegativeInt = 0,
    penalty: NonNegative = 1e3,
    penalty_decay: NonNegative = 1e2,
    least_penalty: NonNegative = 10.0,
    epochs: NonNegativeInt = 200,
    epochs_decay: NonNegativeInt = 50,
    least_epochs: NonNegativeInt = 20,
    fit_batch_size: Count = 512,
    fit_learning_rate: Positive | None = None,
    fit_weight_decay: NonNegative | None = None,
    density: Fraction = 0.5,
    keep: Literal["magnitude", "random"] = "magnitude",
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    weight_decay: NonNegative = 0.0,
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
) -> Defense:
    """Train on noised sums of CLIP(gradient + g_phi), phi learnt from public records.

    Before every step phi is fitted to the current parameters by minimising
    ||g_phi||^2 + lambda Tr J^T J / ||CLIP||^2 over public records, J the Jacobian of
    CLIP(gradient + g_phi) in the record (Equation 2.9, Algorithm 1). What is clipped
    has the clip's norm whatever phi is, so epsilon is DP-SGD's.

    Args:
      task: what is learnt.
      perturbation: `constant` is the published method as its code runs it, a vector
        made by the network's last layers; `constant_direct` the vector itself;
        `network` depends on the example, normalised by statistics of its own;
        `network_static` without normalisation, on standardised inputs (appendix A.4).
      objective: the improvements of section 2.1 in turn, see `fim.objectives`.
      architecture: of the network: Table B.6 (`cnn`) or B.5 (`mlp`).
      share_steps: 0 fits phi anew in every run; otherwise one phi per step, fitted
        beforehand to so many pilot runs on public records, serves all runs. An
        approximation of the former.
      penalty: lambda before the first step.
      penalty_decay: less with every step.
      least_penalty: never less.
      epochs: passes over the public records before the first step.
      epochs_decay: fewer with every step.
      least_epochs: never fewer.
      fit_batch_size: public records per step of phi.
      fit_learning_rate: of phi's Adam; None = .3 for `constant_direct`, else .01.
      fit_weight_decay: of phi; None = 0 for `constant_direct`, else .1.
      density: see `prune`.
      keep: see `prune`.
      clip_norm: C of the soft clip.
      noise_multiplier: standard deviation of the noise over C.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      weight_decay: added to the mean gradient, times the trained parameters.
      steps: how many.
      sampling: who takes part in a step.
      batch_size: records per step; None with full batches.
    """
    clip, narrow = soft_clip(clip_norm), soft_clip(jnp.float32(clip_norm))
    direct = perturbation == "constant_direct"
    rate = (0.3 if direct else 0.01) if fit_learning_rate is None else fit_learning_rate
    decay = (0.0 if direct else 0.1) if fit_weight_decay is None else fit_weight_decay
    schedule = Schedule(
        epochs, epochs_decay, least_epochs, fit_batch_size,
        rate, decay,
        penalty, penalty_decay, least_penalty,
        warm=perturbation != "network_static",
    )  # fmt: skip

    if perturbation == "constant":
        fitter = constant(
            task, narrow, objective, partial(networks.ConstantHead, architecture)
        )
    elif direct:
        fitter = constant(task, narrow, objective, networks.Direct, at_mean=True)
    else:
        static = perturbation == "network_static"
        make = partial(
            networks.Network, architecture, norm="none" if static else "group"
        )
        fitter = network(task, narrow, objective, make, static=static)

    def masked(key: jax.Array, public: Public) -> tuple:
        return start_masked(keep, density)(key, public), public, stream(key, "fim")

    def one_fit(key: jax.Array, public: Public) -> PublicFit:
        return first_fit(fitter, schedule, *masked(key, public))

    def public_fit(key: jax.Array, public: Public) -> PublicFit:
        fit = one_fit(key, public)
        if not share_steps:
            return fit
        pilot, pilot_key = built(None), stream(key, "pilots")

        def shared_side(state: Any) -> Side:
            return share(
                fitter,
                schedule,
                pilot,
                fit.last(state),
                pilot_key,
                runs=share_steps,
                steps=steps,
            )

        return fit._replace(last=shared_side)

    prepare = Preparation(public_fit, schedule.epochs_before(0, max))

    def built(refresh: Refresh | None) -> Defense:
        return noisy_sgd(
            task,
            gradient(task, clip, fitter.perturb),
            SAMPLERS[sampling](batch_size),
            gaussian(noise_multiplier * clip_norm),
            optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
            steps=steps,
            prepare=prepare,
            refresh=refresh,
        )

    passes = schedule.passes(steps)
    refresh = Refresh(refresher(fitter, schedule), epochs, passes)
    if share_steps:
        refresh = Refresh(pick, first_passes=epochs + share_steps * passes)
    constants = perturbation in ("constant", "constant_direct")
    return built(refresh._replace(fit=None if constants else one_fit))
