"""Zipf laws: draws and collisions against the integrals they come from."""

import math

import numpy as np
import pytest
import torch

from rankfold.data.criteo_laws import Zipf


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3, 2.5])
@pytest.mark.parametrize("size", [1, 3, 5000])
def test_ranks_follow_the_law(size, exponent):
    law = Zipf(size, exponent)

    def antiderivative(x):
        return math.log(x) if exponent == 1.0 else x ** (1 - exponent) / (1 - exponent)

    mass = np.array([antiderivative(k + 0.5) - antiderivative(k - 0.5) for k in range(1, size + 1)])
    mass /= mass.sum()
    # draws at evenly spaced numbers have the law's own frequencies
    ranks = law.draw((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000)
    np.testing.assert_allclose(np.bincount(ranks, minlength=size) / 200_000, mass, atol=1.1e-5)
    assert law.collision() == pytest.approx((mass**2).sum(), rel=1e-3)


def test_the_ends_of_the_interval_are_ranks():
    law = Zipf(10_131_227, 0.949)
    assert law.draw(torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)).tolist() == [0, 10_131_226]
