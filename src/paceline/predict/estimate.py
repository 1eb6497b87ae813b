"""A predicted number and how far the true one may be from it."""

from dataclasses import dataclass
from math import exp

# Two-sided 90 % of a normal distribution.
NORMAL_90 = 1.645


@dataclass(frozen=True)
class Estimate:
    """A value and where the true one is with 90 % confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, deviation: float) -> "Estimate":
        """From a relative deviation, which is as likely to halve a value as to double it."""
        reach = exp(NORMAL_90 * deviation)
        return cls(value, value / reach, value * reach)

    def inverted(self, over: float) -> "Estimate":
        """`over` divided by the value: a rate from a time."""
        return Estimate(over / self.value, over / self.high, over / self.low)

    def times(self, factor: float) -> "Estimate":
        """The value and its interval, scaled."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)
