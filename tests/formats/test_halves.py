"""Two matrices whose product is the whole one."""

import pytest
import torch

import rankfold as rf

CONFIGS = [
    rf.CP(3, in_dims=(3, 5), out_dims=(4, 2)),
    rf.Tucker((2, 3, 2, 2), in_dims=(3, 5), out_dims=(4, 2)),
    rf.TT((2, 4, 3), in_dims=(3, 5), out_dims=(4, 2)),
    rf.TT((2, 4), in_dims=(3, 5), out_dims=(8,)),
    rf.CP(3, in_dims=(15,), out_dims=(8,)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{type(c).__name__}-{c.out_dims}")
@pytest.mark.parametrize("sizes", [(15, 8), (14, 7)], ids=["whole", "padded"])
def test_the_product_of_the_halves_is_the_matrix(config, sizes):
    format = config.build(*sizes)
    factors = format.random_factors(1.0)
    left, right = format.halves(factors)
    assert left.shape[0] == sizes[0]
    assert right.shape[1] == sizes[1]
    torch.testing.assert_close(left @ right, format.reconstruct(factors))


def test_the_inner_size_is_the_rank_between_inputs_and_outputs():
    inner = [c.build(15, 8).halves(c.build(15, 8).random_factors(1.0))[0].shape[1] for c in CONFIGS]
    assert inner == [3, 6, 4, 4, 3]


def test_tensor_train_matrices_have_none():
    format = rf.TTM(3, in_dims=(3, 5), out_dims=(4, 2)).build(15, 8)
    assert format.halves(format.random_factors(1.0)) is None
