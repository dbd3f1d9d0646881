"""Programs side by side: what may be, and that it changes nothing."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.engine import cores
from audit.engine.cores import Cores, at_once

X = np.eye(3) + 0.1


def test_programs_that_factor_matrices_are_computed_one_at_a_time(monkeypatch):
    monkeypatch.setattr(cores, "threads", lambda: 5)
    for function, many in {jnp.tanh: 5, jnp.linalg.eigh: 1, jnp.linalg.qr: 1}.items():
        lowered = jax.jit(function).lower(X)
        assert at_once(lowered) == at_once(lowered.compile()) == many
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert at_once(jax.jit(jnp.tanh).lower(X)) == 1


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
