"""What `paceline show` refuses; its text is compared in `golden`."""

import pytest

from paceline.cli.show import checked_options
from paceline.errors import UserError


@pytest.mark.parametrize("target", [0.0, -0.1, 1.5, float("nan")])
def test_a_target_accuracy_that_is_no_share_is_refused(target):
    with pytest.raises(UserError, match="is no share of the test set; give one"):
        checked_options(target, None)


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan")])
def test_a_price_of_energy_or_time_that_is_none_is_refused(price):
    with pytest.raises(UserError, match="is no price; give an amount such as"):
        checked_options(None, price)
