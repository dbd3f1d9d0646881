"""Programs of the next defenses are compiled meanwhile, and give the same bits."""

import threading
from concurrent.futures import CancelledError

import jax
import numpy as np
import pytest

from audit.engine import shadow
from audit.engine.ahead import Ahead
from audit.types import Lanes
from tests.engine.test_shadow import DATA, KEY, learner


def trained(defense, ahead):
    """Return the releases of a defense in tiles of 4."""
    engine = shadow.Engine(Lanes(4, 2.0), ahead=ahead)
    return shadow.sweep("train", defense, KEY, DATA, engine=engine)


def test_the_next_defense_finds_its_program_compiled():
    first, second, same = learner(steps=4), learner(steps=5), learner(steps=4)
    compiled = []

    def listen(name, _, fun_name="", **more):
        if name.endswith("backend_compile_duration") and "lane" in fun_name:
            compiled.append(fun_name)

    with Ahead([first, same, second]) as ahead:
        trained(first, ahead)
        begun = list(ahead.begun.values())
        # of its own program none was begun, and `same` needs that very program
        assert [f.cancelled() for f in begun] == [True, False]
        assert begun[1].exception() is None
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            got = trained(second, ahead)
        finally:
            jax.monitoring.clear_event_listeners()
    assert compiled == []
    jax.tree.map(np.testing.assert_array_equal, got, trained(second, None))


def test_what_has_not_begun_is_left_to_its_caller():
    go, running = threading.Event(), threading.Event()

    def long():
        running.set()
        go.wait()

    with Ahead([]) as ahead:
        ahead.compile("long", long)
        ahead.compile("other", pytest.fail)
        running.wait()
        ahead.wait("other")
        go.set()
        ahead.wait("long")
        assert ahead.begun["long"].done()
    with pytest.raises(CancelledError):
        ahead.begun["other"].result()


def test_an_error_is_left_to_the_caller():
    with Ahead([]) as ahead:
        ahead.compile("broken", lambda: 1 / 0)
        ahead.wait("broken")
        assert isinstance(ahead.begun["broken"].exception(), ZeroDivisionError)
