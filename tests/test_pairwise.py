"""A pairwise product does what ``torch.einsum`` does, or says that it cannot."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold import pairwise as module
from rankfold.pairwise import pairwise

SIZES = {"B": 3, "a": 2, "b": 4, "c": 1, "d": 5, "e": 1}


def operands(equation: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    terms = equation.split("->", maxsplit=1)[0].split(",")
    shapes = [[SIZES[c] for c in term] for term in terms]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def term(draw: st.DrawFn, letters: str) -> str:
    return "".join(draw(st.permutations(draw(st.lists(st.sampled_from(letters), unique=True, max_size=4)))))


@st.composite
def equations(draw: st.DrawFn) -> str:
    a, b = term(draw, "Babcde"), term(draw, "Babcde")
    kept = draw(st.lists(st.sampled_from(sorted(set(a + b))), unique=True)) if a + b else []
    return f"{a},{b}->{''.join(draw(st.permutations(kept)))}"


@given(equations(), st.booleans(), st.sampled_from([1, 8]))
@settings(deadline=None, max_examples=300)
def test_it_is_the_einsum_of_the_equation_and_so_are_its_gradients(
    equation: str, batch_unknown: bool, least_side: int
) -> None:
    a, b, target = equation.replace("->", ",").split(",")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_SIDE", least_side)
        step = pairwise(equation, SIZES | ({"B": -1} if batch_unknown else {}))
    summed_alone = [c for c in set(a) ^ set(b) if c not in target and (SIZES[c] > 1 or (c == "B" and batch_unknown))]
    assert (step is None) == bool(summed_alone)
    if step is None:
        return
    first, second = operands(equation)
    found, truth = step.of(first, second), torch.einsum(equation, first, second)
    torch.testing.assert_close(found, truth)
    upstream = torch.randn(truth.shape, dtype=truth.dtype)
    gradients = torch.autograd.grad(found, (first, second), upstream)
    torch.testing.assert_close(gradients, torch.autograd.grad(truth, (first, second), upstream))


def test_batches_of_two_letters_and_one_column() -> None:
    sizes = {"a": 2, "c": 3, "d": 4, "g": 5}
    first, second = torch.randn(2, 3, 4, 5), torch.randn(5, 2, 4)
    found = pairwise("acdg,gad->cga", sizes)
    assert found is not None
    torch.testing.assert_close(found.of(first, second), torch.einsum("acdg,gad->cga", first, second))


def test_a_letter_twice_in_an_operand_is_left_to_einsum() -> None:
    assert pairwise("aab,bd->d", SIZES) is None


@pytest.mark.parametrize(
    ("equation", "product", "permuted"),
    [
        ("Bab,bd->Bad", "mm", False),
        ("ab,Bbd->Bad", "mm", True),  # the batch lies between others, but nothing is multiplied for each of it
        ("Bab,Bbd->Bad", "bmm", False),
        ("Bd,Bd->Bd", "mul", False),
        ("cab,bde->ade", "mm", False),  # modes of size 1 are moved by reshaping alone
    ],
)
def test_the_simplest_product_that_will_do(equation: str, product: str, permuted: bool) -> None:
    step = pairwise(equation, SIZES)
    assert step is not None
    assert (step.product, step.result is not None and step.result.permutation is not None) == (product, permuted)


@pytest.mark.parametrize(
    ("equation", "product", "times"),
    [
        ("aq,qbc->bac", "bmm", (5, 0)),  # for every b: the first operand is repeated
        ("bqc,aq->bac", "bmm", (0, 5)),
        ("aq,qbc->abc", "mm", (0, 0)),
        ("aq,qbd->bad", "mm", (0, 0)),  # too few columns to be worth a product of their own
        ("aq,qBc->Bac", "mm", (0, 0)),  # how many is not known before
    ],
)
def test_an_operand_is_repeated_where_the_result_would_be_copied(
    equation: str, product: str, times: tuple[int, int]
) -> None:
    size = {"a": 9, "b": 5, "c": 8, "d": 7, "q": 3, "B": -1}
    step = pairwise(equation, size)
    assert step is not None
    assert (step.product, step.first.times, step.second.times) == (product, *times)
    assert product == "mm" or (step.result is not None and step.result.permutation is None)
    terms = equation.split("->", maxsplit=1)[0].split(",")
    first, second = (torch.randn([abs(size[c]) for c in term], dtype=torch.float64) for term in terms)
    torch.testing.assert_close(step.of(first, second), torch.einsum(equation, first, second))


def test_a_batch_of_none() -> None:
    step = pairwise("Bab,bd->Bad", SIZES | {"B": -1})
    assert step is not None
    assert step.of(torch.ones(0, 2, 4), torch.ones(4, 5)).shape == (0, 2, 5)
