"""Programs side by side: what may be, and that it changes nothing."""

import subprocess
import sys
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.accounting import vmf
from audit.engine import cores
from audit.engine.cores import Cores, cores_for
from tests import ROOT

X = np.eye(3) + 0.1


def sum_of_draws(x):
    """Draw around the rows of x, as DirDP-SGD does around gradients."""
    rows, key = jnp.pad(x, ((0, 0), (0, 2))), jax.random.key(0)
    inner, combine = lambda v: rows @ v, lambda c: c @ rows
    weight, like = jnp.ones(len(x)), jnp.zeros(rows.shape[1], x.dtype)
    return vmf.sample_sum(key, 1.0, weight, rows @ rows.T, inner, combine, like)


FACTORED = {
    "eigh": jnp.linalg.eigh,
    "qr": jnp.linalg.qr,
    "cholesky": jnp.linalg.cholesky,
    "triangular": lambda x: jax.lax.linalg.triangular_solve(x, x, left_side=True),
    "svd": jnp.linalg.svd,
    "solve": lambda x: jnp.linalg.solve(x, x),
}


def callback(x):
    return jax.pure_callback(lambda a: a, x, x, vmap_method="expand_dims")


ALONE = {"callback": callback}
TOGETHER = {
    "tanh": jnp.tanh,
    "product": lambda x: x @ x,
    "fft": jnp.fft.fft2,
    "sort": lambda x: jnp.sort(x, -1),
    "top_k": lambda x: jax.lax.top_k(x, 2),
    "directions": sum_of_draws,
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
}


@pytest.mark.parametrize("name", [*ALONE, *FACTORED, *TOGETHER])
@pytest.mark.parametrize("matrices", [None, 1, 2])
def test_programs_that_would_wait_for_each_other_are_computed_alone(
    monkeypatch, name, matrices
):
    """LAPACK spreads several matrices over XLA's threads, and waits for them."""
    monkeypatch.setattr(cores, "threads", lambda: 5)
    function = (ALONE | FACTORED | TOGETHER)[name]
    if matrices is not None:
        function = jax.vmap(function)
    x = X if matrices is None else np.stack(matrices * [X])
    lowered = jax.jit(function).lower(x)
    many = 1 if name in ALONE or (name in FACTORED and matrices == 2) else 5
    assert cores_for(lowered) == cores_for(lowered.compile()) == many
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert cores_for(lowered) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_threads_compute_in_the_precision_of_the_caller(number):
    def program(x):
        return threading.get_ident(), jnp.asarray(x)

    for precise, kind in ((True, np.float64), (False, np.float32)):
        with jax.enable_x64(precise), Cores(number) as threads:
            begun = threads.submit(program, X)
        thread, got = begun.result()
        assert (thread == threading.get_ident()) == (number == 1)
        assert got.dtype == kind
        np.testing.assert_array_equal(got, X.astype(kind))


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_comes_up_where_the_result_is_asked_for(number):
    def broken():
        raise ZeroDivisionError("in a program")

    with Cores(number) as threads, pytest.raises(ZeroDivisionError, match="program"):
        threads.submit(broken).result()


def factor_side_by_side(matrices=1):
    """Compute programs that factor so many matrices at a time in two threads."""
    x = np.random.default_rng(0).normal(size=(200, matrices, 80, 785))

    def steps(factor, x):
        def one(rows):  # the product before each keeps XLA's threads busy
            product = rows @ jnp.swapaxes(rows, -1, -2)
            return sum(a.sum() for a in jax.tree.leaves(factor(product)))

        return jax.lax.map(one, x)

    for factor in FACTORED.values():
        program = jax.jit(partial(steps, factor if matrices == 1 else jax.vmap(factor)))
        given = jnp.asarray(x[:, 0] if matrices == 1 else x)
        want = np.asarray(program(given))
        with Cores(2) as threads:
            for future in [threads.submit(program, given) for _ in range(4)]:
                np.testing.assert_array_equal(future.result(), want)


def test_programs_that_factor_one_matrix_do_not_wait_for_each_other():
    """Several matrices would, for ever: a process can be stopped, a thread cannot."""
    code = f"from {__name__} import factor_side_by_side as f; f()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=True)
