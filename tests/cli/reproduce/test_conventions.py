"""What papers compute in conventions of their own, against libraries."""

import dp_accounting
import pytest

from audit.cli.reproduce import conventions


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize(
    ("records", "batch_size", "steps"), [(60_000, 600, 5_000), (50_000, 200, 37_500)]
)
def test_the_divergence_of_guo_is_the_librarys(records, batch_size, steps, sigma):
    step = dp_accounting.PoissonSampledDpEvent(
        batch_size / records,
        dp_accounting.GaussianDpEvent(sigma / conventions.EDMUNDS_OVERSHOOT),
    )
    accountant = dp_accounting.rdp.RdpAccountant([2.0])
    accountant.compose(step, steps)
    ours = conventions.guo_rdp2(
        records=records, batch_size=batch_size, steps=steps, noise_multiplier=sigma
    )
    assert ours == pytest.approx(float(accountant._rdp[0]), rel=1e-9)
