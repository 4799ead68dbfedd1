"""Floors against counts by hand, and ceilings that a machine can have."""

import math

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.bench.cases import TABLE_ROWS, Sizes, embedding_case, linear_cases
from rankfold.bench.ceilings import (
    Ceilings,
    Work,
    forward_work,
    matmul_precision,
    measure_ceilings,
    touched_bytes,
    training_work,
)
from rankfold.bench.step import step_work

CPU = torch.device("cpu")


def test_the_floor_is_the_slower_of_bytes_and_operations():
    ceilings = Ceilings(bytes_per_second=1e9, flops_per_second=1e12, tf32_flops_per_second=4e12)
    assert ceilings.floor_ms(Work(2_000_000, 10**9)) == 2.0  # bytes
    assert ceilings.floor_ms(Work(2_000, 4 * 10**9)) == 4.0  # operations
    assert ceilings.floor_ms(Work(2_000, 4 * 10**9), tf32=True) == 1.0


def test_this_machine_copies_and_multiplies():
    found = measure_ceilings(CPU)
    assert 1e8 < found.bytes_per_second < 1e13
    assert 1e8 < found.flops_per_second < 1e16
    assert found.tf32_flops_per_second is None


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with matmul_precision(tf32=True):
        assert torch.get_float32_matmul_precision() == "high"
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_a_dense_layer_is_counted_as_by_hand():
    layer, x = nn.Linear(24, 12), torch.randn(5, 24, requires_grad=True)
    parameters = 24 * 12 + 12
    assert forward_work(layer, x) == Work(4 * (5 * 24 + parameters + 5 * 12), 2 * 5 * 24 * 12)
    assert training_work(layer, x) == Work(8 * (5 * 24 + parameters + 5 * 12), 3 * 2 * 5 * 24 * 12)


def test_ttm_rows_are_counted_as_by_hand():
    """Every distinct row multiplies (4, 16) by (16, 4·16), and (16, 16) by (16, 8)."""
    case = embedding_case(64, dense_table=False)
    ttm = next(c for c in case.contenders if c.name == "rankfold, fixed rank, TTM").build()
    index = torch.cat([torch.arange(60), torch.zeros(4, dtype=torch.long)])
    assert training_work(ttm, index).flops == 3 * 60 * (2 * 4 * 16 * 64 + 2 * 16 * 16 * 8)
    output, parameters = 4 * 64 * 128, 4 * sum(p.numel() for p in ttm.parameters())
    assert training_work(ttm, index).num_bytes == index.nbytes + 2 * output + 2 * parameters


def test_the_core_of_a_tucker_table_is_contracted_once_for_many_rows():
    table = rf.Embedding(1_000, 8, config=rf.Tucker(6, in_dims=(10, 10, 10), out_dims=(8,), inference="fixed"))
    few, many = (forward_work(table, torch.arange(count)).flops for count in (10, 800))
    alone = 2 * (6**4 + 6**3 + 6**2 + 6 * 8)  # one row by itself: the core with one factor's row after the other
    assert few <= 10 * alone
    assert many < 800 * alone / 2


def test_of_a_dense_table_only_rows_that_are_asked_for_count():
    assert touched_bytes(nn.Embedding(100, 8), torch.tensor([3, 3, 7])) == 2 * 8 * 4


def test_counting_does_not_run_or_change_a_layer():
    layer = rf.Linear(24, 12, config=rf.CP(max_rank=3))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    training_work(layer, torch.full((5, 24), math.nan, requires_grad=True))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(p.device.type == "cpu" and p.grad is None for p in layer.parameters())


def test_a_step_moves_parameters_gradients_and_moments():
    layer, x = nn.Linear(24, 12, bias=False), torch.randn(5, 24)
    assert step_work(layer, x).num_bytes == 4 * (5 * 24 + 5 * 12 + 8 * 24 * 12)


@pytest.mark.parametrize("skew", ["uniform", "skewed"])
def test_indices_are_rows_of_the_table_and_as_skewed_as_they_say(skew):
    torch.manual_seed(0)
    index = embedding_case(20_000, dense_table=False, skew=skew).make_input(CPU)
    assert index.min() >= 0
    assert index.max() < TABLE_ROWS
    share = float((index < 3_182).double().mean())  # half of the logarithm of all rows
    assert share == pytest.approx(0.5 if skew == "skewed" else 0.0, abs=0.02)


def test_tf32_cases_are_the_large_ones_again():
    cases = linear_cases(Sizes(8, 1), tf32=True)
    assert [case.tf32 for case in cases] == [False, False, False, True, True]
    assert [case.name for case in cases[3:]] == [f"{case.name}, TF32" for case in cases[1:3]]
