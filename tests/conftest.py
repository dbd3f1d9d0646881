"""Fixtures shared by the tests."""

import gc
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from hydra._internal.hydra import Hydra
from jax.flatten_util import ravel_pytree
from threadpoolctl import threadpool_limits

from audit.cli import forecast
from audit.statistics import lpips
from audit.types import Examples


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Compile equal programs once: many tests, and both workers, build the same one."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder in a common one
        place = place.parent
    jax.config.update("jax_compilation_cache_dir", str(place / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


@pytest.fixture(scope="session", autouse=True)
def one_thread_of_lapack():
    """As in a run: `audit.pipeline.audit` says why."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def few_pairs():
    """Compare ten pairs of images per call of LPIPS: small runs have few targets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lpips, "PARTS", 10)
        yield


MAPPINGS = 30_000  # of memory, of the 65,530 that Linux gives a process


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Forget compiled programs in time: each maps memory, and JAX dies without any."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPPINGS:
        jax.clear_caches()


def compile_quickly():
    """Let XLA optimise nothing: the default tests compile more than they compute.

    Commands that tests start inherit it. An unknown flag of XLA is fatal.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)
    if jaxlib.version.__version_info__ < (0, 11):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false".strip()


@pytest.fixture
def optimised():
    """Let XLA optimise, as it does for users."""
    word = "jax_disable_most_optimizations"
    before = jax.config.values[word]
    jax.config.update(word, False)
    yield
    jax.config.update(word, before)


@pytest.fixture(scope="session", autouse=True)
def no_experience(tmp_path_factory):
    """Plans learn from no test, and tests from no run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "cache_folder", lambda: tmp_path_factory.getbasetemp())
        yield


@pytest.fixture(scope="session", autouse=True)
def composed_once():
    """Let Hydra compose a scenario once: before that it does so to read `hydra.mode`.

    Commands that tests start as processes of their own compose as users' do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        yield


def pytest_addoption(parser):
    group = parser.getgroup("strength of attacks (docs/strength.md)")
    group.addoption(
        "--update-golden",
        action="store_true",
        help="play all golden seeds of `-m strength` and write the golden files",
    )
    group.addoption("--reason", help="why, kept in the golden files")


def pytest_configure(config):
    if "not strength" in config.option.markexpr and not config.option.benchmark_only:
        compile_quickly()
    gc.set_threshold(50_000)  # a tenth of all time went into looking for garbage
    update, reason = (config.getoption(o) for o in ("--update-golden", "--reason"))
    if update and not reason:
        raise pytest.UsageError('--update-golden needs --reason "why"')
    if reason and not update:
        raise pytest.UsageError("--reason goes with --update-golden")


def pytest_collection_modifyitems(items):
    """Begin with the longest file: left to the end, one worker would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_pipeline.py")


@pytest.fixture(scope="session")
def strength_store(tmp_path_factory):
    """Where releases are kept, so that mutants of an attack need no training."""
    return tmp_path_factory.mktemp("strength")


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """Whatever is refused is refused before anything runs; results go elsewhere."""
    import audit.__main__ as cli

    def fail(*args, **settings):
        raise AssertionError("something was trained")

    monkeypatch.setattr(cli, "_audit", fail)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


def records(n, features=(6,), classes=3, seed=0):
    """Make n random records in [0, 1]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, *features)).astype(np.float32)
    return Examples(x, rng.integers(0, classes, n).astype(np.int32))


def double(tree):
    """Cast every float of a tree to float64, as the accounting does."""
    cast = lambda a: a.astype(float) if a.dtype.kind == "f" else a
    return jax.tree.map(cast, jax.tree.map(np.asarray, tree))


def wide(n, features, classes, seed=0):
    """Make n random records as float64 arrays of the device; needs x64."""
    return jax.tree.map(jnp.asarray, double(records(n, features, classes, seed)))


def flat(tree):
    """Return all numbers of a tree as one vector."""
    return np.asarray(ravel_pytree(tree)[0])


def public(task, z=None, key=None):
    """Make the common starting point, on public records or none."""
    from audit.models import pretrain

    nobody = records(0, task.features, task.classes)
    key = jax.random.key(0) if key is None else key
    return pretrain.start(task, key, nobody if z is None else z)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither AUDIT_DATA nor a warm cache."""
    monkeypatch.delenv("AUDIT_DATA", raising=False)
    monkeypatch.setenv("AUDIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def full_data():
    """The folder with the full data sets, or skip with the reason."""
    named = os.environ.get("AUDIT_DATA")
    if not named:
        pytest.skip("AUDIT_DATA is not set: no full data sets here")
    return named
