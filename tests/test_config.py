"""Configs: what they build, and the message of every bad option."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold import formats
from rankfold.config import CP, TT, TTM, Tucker, default_order, default_pairs
from rankfold.priors import HalfCauchy, LogUniform

CONFIGS = {CP: formats.CP, Tucker: formats.Tucker, TT: formats.TensorTrain, TTM: formats.TensorTrainMatrix}
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)


@every_config
@given(in_size=st.integers(1, 10**6), out_size=st.integers(1, 10**4), max_rank=st.integers(1, 64))
def test_any_layer_size_builds(config, in_size, out_size, max_rank):
    format = config(max_rank).build(in_size, out_size)
    assert type(format) is CONFIGS[config]
    assert (format.inputs.size, format.outputs.size) == (in_size, out_size)
    assert set(format.ranks) == {max_rank}
    assert max(format.inputs.padding, format.outputs.padding) <= 0.05


@every_config
@given(order=st.integers(2, 8), size=st.integers(1, 5000))
def test_the_order_is_the_number_of_modes_of_a_side(config, order, size):
    format = config(2, order=order, max_padding=0.5).build(size, 60)
    assert len(format.inputs.dims) == len(format.outputs.dims) == order


@every_config
def test_given_dims_and_ranks_are_taken_as_they_are(config):
    made = config(3, in_dims=[28, 28], out_dims=[16, 32])
    assert (made.in_dims, made.out_dims) == ((28, 28), (16, 32))
    ranks = [n + 2 for n in range(len(made.build(784, 512).ranks))]
    format = replace(made, max_rank=ranks).build(784, 512)
    assert (format.inputs.dims, format.outputs.dims, format.ranks) == ((28, 28), (16, 32), tuple(ranks))


@every_config
@pytest.mark.parametrize("kernel", [1, 3, 9])
def test_kernel_positions_stay_one_whole_mode(config, kernel):
    format = config(2, in_dims=(4, 4), out_dims=(8, 4)).build(16, 32, kernel_size=kernel)
    assert format.inputs.size == 16 * kernel
    assert format.inputs.dims == ((4, 4) if kernel == 1 else (4, 4, kernel))
    assert math.prod(format.outputs.dims) == 32


def test_ttm_pairs_large_modes_with_small_ones():
    format = TTM(4, order=3).build(1024, 1024)
    assert format.inputs.dims == (8, 8, 16)
    assert format.outputs.dims == (16, 8, 8)


def test_one_given_side_sets_the_number_of_pairs():
    assert len(TTM(4, in_dims=(5, 5, 5, 5, 6, 8)).build(25_000, 256).outputs.dims) == 6
    assert len(TTM(4, out_dims=(2, 5)).build(512, 10).inputs.dims) == 2


@given(size=st.integers(1, 10**8))
def test_default_orders_are_small(size):
    assert 1 <= default_order(size) <= 3
    assert 2 <= default_pairs(size, size) <= 4


@every_config
@pytest.mark.parametrize("rank", [0, -1, 2.5, 3.0, True, False, "20", None, math.inf, (4, 0), [2.0], {3}], ids=str)
def test_a_bad_rank_is_named(config, rank):
    with pytest.raises(ValueError, match="max_rank must be a positive integer, got"):
        config(rank)


@every_config
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_dims": 784}, "in_dims must be a tuple of positive integers, got 784"),
        ({"in_dims": ()}, r"in_dims must be a tuple of positive integers, got \(\)"),
        ({"in_dims": (28, 0)}, r"in_dims must be a tuple of positive integers, got \(28, 0\)"),
        ({"out_dims": (28.0, 2)}, r"out_dims must be a tuple of positive integers, got \(28.0, 2\)"),
        ({"out_dims": (True, 2)}, r"out_dims must be a tuple of positive integers, got \(True, 2\)"),
        ({"order": 0}, "order must be a positive integer, got 0"),
        ({"order": -2}, "order must be a positive integer, got -2"),
        ({"order": 2.0}, "order must be a positive integer, got 2.0"),
        ({"max_padding": -0.1}, "max_padding must lie between 0 and 1 .* got -0.1"),
        ({"max_padding": 2}, "max_padding must lie between 0 and 1 .* got 2"),
        ({"max_padding": math.nan}, "max_padding must lie between 0 and 1 .* got nan"),
        ({"inference": "vi"}, "inference must be 'bayes', 'map' or 'fixed', got 'vi'"),
        ({"inference": None}, "inference must be 'bayes', 'map' or 'fixed', got None"),
        ({"init_std": 0.0}, "init_std must be positive and finite, got 0.0"),
        ({"init_std": -1.0}, "init_std must be positive and finite, got -1.0"),
        ({"init_std": math.nan}, "init_std must be positive and finite, got nan"),
        ({"weak_std": 0}, "weak_std must be positive and finite, got 0"),
        ({"weak_std": math.inf}, "weak_std must be positive and finite, got inf"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(4, **options)


@every_config
def test_equal_rows_is_yes_or_no(config):
    with pytest.raises(TypeError, match="equal_rows must be True or False, got 1"):
        config(4, equal_rows=1)


@every_config
@pytest.mark.parametrize("prior", ["half-cauchy", HalfCauchy, None, 0.1], ids=str)
def test_a_prior_must_be_a_prior(config, prior):
    with pytest.raises(TypeError, match=r"prior must be rankfold.LogUniform\(\) or rankfold.HalfCauchy\(\), got"):
        config(4, prior=prior)


@every_config
@pytest.mark.parametrize("name", ["rank", "maxrank", "dims", "eta", "input_dims"])
def test_an_unknown_option_is_named(config, name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        config(4, **{name: 3})


@every_config
def test_options_are_keywords_and_the_rank_is_needed(config):
    with pytest.raises(TypeError, match="positional arguments"):
        config(4, (2, 2))
    with pytest.raises(TypeError, match="max_rank"):
        config()


@every_config
def test_configs_are_frozen_comparable_and_hashable(config):
    made = config(4, prior=HalfCauchy(0.1))
    with pytest.raises(FrozenInstanceError):
        made.max_rank = 5
    with pytest.raises(FrozenInstanceError):
        made.prior.eta = 5.0
    assert made == config(4, prior=HalfCauchy(0.1))
    assert made != config(4, prior=LogUniform())
    assert len({made, config(4, prior=HalfCauchy(0.1))}) == 1


@every_config
def test_the_wrong_number_of_ranks_is_named_when_built(config):
    with pytest.raises(ValueError, match=r"with input modes \(28, 28\) and output modes \(16, 32\) has .* got 9"):
        config((2,) * 9, in_dims=(28, 28), out_dims=(16, 32)).build(784, 512)


@every_config
@pytest.mark.parametrize(
    ("in_dims", "message"),
    [
        ((28, 27), r"dims \(28, 27\) hold 756 entries, but 784 are needed"),
        ((80, 80), r"dims \(80, 80\) hold 6400 entries, more than twice the 784"),
    ],
)
def test_dims_of_the_wrong_size_are_named_when_built(config, in_dims, message):
    with pytest.raises(ValueError, match=message):
        config(4, in_dims=in_dims, out_dims=(16, 32)).build(784, 512)


def test_ttm_refuses_sides_that_do_not_pair():
    with pytest.raises(ValueError, match=r"got 2 input modes \(28, 28\) and 3 output modes \(8, 8, 8\)"):
        TTM(4, in_dims=(28, 28), out_dims=(8, 8, 8)).build(784, 512)
    with pytest.raises(ValueError, match="needs at least 2 modes on each side"):
        TTM(4, order=1).build(784, 512)


@every_config
@pytest.mark.parametrize(("in_size", "out_size"), [(0, 4), (4, 0), (-3, 4), (4, 2.5)])
def test_a_bad_size_is_named(config, in_size, out_size):
    with pytest.raises(ValueError, match="a size to fold must be a positive integer, got"):
        config(4, order=2).build(in_size, out_size)
