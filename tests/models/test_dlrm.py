"""DLRM against its definition, its parameter counts, and training from a text file to the end."""

import pytest
import torch
import torch.nn.functional as F
from data.criteo.fake import fake_lines
from torch import nn

import rankfold as rf
from rankfold.data.criteo import KAGGLE_SIZES, prepare, time_split
from rankfold.experiments.clicks import click_scores
from rankfold.models.dlrm import DLRM, Table, dot_products, tables_from

ROWS = (10_131_227, 2_202_608, 8_351_593, 5_461_306, 7_046_547)


def on_meta(*args, **kwargs):
    with torch.device("meta"):
        return DLRM(*args, **kwargs)


def test_the_network_of_the_paper():
    model = on_meta()
    assert [layer.weight.shape for layer in model.bottom if isinstance(layer, nn.Linear)] == [
        (512, 13),
        (256, 512),
        (256, 256),
        (128, 256),
    ]
    # 128 numbers and the products of 27 vectors
    assert [layer.weight.shape for layer in model.top if isinstance(layer, nn.Linear)] == [
        (512, 128 + 351),
        (256, 512),
        (1, 256),
    ]
    assert isinstance(model.bottom[-1], nn.ReLU)
    assert sum(p.numel() for p in model.tables.parameters()) == 128 * sum(KAGGLE_SIZES)
    large = [table for table in model.tables if tables_from(1_000_000)(table, "")]
    assert tuple(table.num_embeddings for table in large) == ROWS
    assert sum(table.weight.numel() for table in large) == 4_248_739_968


def test_forward_is_its_definition():
    torch.manual_seed(0)
    model = DLRM((5, 7, 9), dim=4, bottom=(6,), top=(8,), num_numbers=2).double()
    numbers, categories = torch.randn(3, 2).double(), torch.tensor([[0, 1, 2], [4, 6, 8], [3, 3, 3]])
    logits = model(numbers, categories)
    for b in range(3):
        summary = numbers[b]
        for layer in model.bottom:
            summary = layer(summary)
        vectors = [summary, *(table.weight[c] for table, c in zip(model.tables, categories[b], strict=True))]
        products = [vectors[i] @ vectors[j] for i in range(4) for j in range(i)]
        expected = model.top(torch.cat([summary, torch.stack(products)]))
        torch.testing.assert_close(logits[b], expected[0])
    assert torch.equal(logits, model(numbers, categories.int()))


def test_every_pair_has_one_product():
    vectors = torch.randn(2, 5, 3)
    products = dot_products(vectors)
    expected = sorted(float(vectors[1, i] @ vectors[1, j]) for i in range(5) for j in range(i))
    assert sorted(products[1].tolist()) == pytest.approx(expected, rel=1e-5)


def test_tables_start_as_those_of_the_dlrm_paper_and_large_ones_at_zero():
    torch.manual_seed(0)
    weight = Table(10_000, 8).weight.detach()
    assert float(weight.abs().max()) <= 0.01
    assert float(weight.std()) == pytest.approx(0.01 / 3**0.5, rel=0.02)
    assert not Table(1_000_000, 1).weight.any()


def test_the_size_rule_chooses_what_is_tensorized_and_nothing_else_is_large():
    model = rf.tensorize_(on_meta(), rf.TTM(max_rank=8, init_std=0.01), tables_from(10_000))
    tensorized = [table.num_embeddings for table in model.tables if isinstance(table, rf.Embedding)]
    assert tensorized == [size for size in KAGGLE_SIZES if size >= 10_000]
    assert all(not p.is_meta and p.numel() < 10_000 * 128 for p in model.parameters())
    logits = model(torch.randn(3, 13), torch.tensor(KAGGLE_SIZES).repeat(3, 1) - 1)
    assert logits.isfinite().all()
    with pytest.raises(ValueError, match="min_rows must be a positive integer, got 0"):
        tables_from(0)


def test_wrong_shapes_are_named():
    model = DLRM((5, 7), dim=4, bottom=(6,), top=(8,), num_numbers=2)
    with pytest.raises(ValueError, match=r"categories \(B, 2\), got \(3, 2\) and \(3, 5\)"):
        model(torch.randn(3, 2), torch.zeros(3, 5, dtype=torch.long))


@pytest.mark.filterwarnings("ignore::rankfold.RankCollapseWarning")  # so few examples say little of a table
def test_from_a_text_file_with_broken_lines_to_a_trained_model(tmp_path):
    """200 lines, five of them broken; six sevenths train, the rest is predicted."""
    lines = fake_lines(200, values=20)
    for number, broken in (
        (3, b"junk"),
        (50, b"1\t2\t3"),
        (90, lines[90] + b"\t"),
        (120, b"x" + lines[120][1:]),
        (199, b"\xff"),
    ):
        lines[number] = broken
    (tmp_path / "train.txt").write_bytes(b"\n".join(lines))
    with pytest.warns(UserWarning, match=r"5 malformed lines were left out, the first: .*train.txt:4: it has 1 field"):
        data = prepare([tmp_path / "train.txt"], max_malformed=5)
    assert len(data) == 195

    torch.manual_seed(0)
    model = DLRM(data.sizes, dim=16, bottom=(16,), top=(32,))
    rf.tensorize_(model, rf.TTM(max_rank=6, init_std=0.1), tables_from(30))
    assert any(isinstance(table, rf.Embedding) for table in model.tables)
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    train = time_split(len(data)).train
    order = torch.randperm(train.stop).split(32)
    ranks = rf.RankDetermination(model, optimizer, train.stop, 12 * len(order), kl_weight=0.1)
    losses = []
    for _ in range(12):
        for batch in order:
            loss = F.binary_cross_entropy_with_logits(
                model(data.numbers[batch], data.categories[batch]), data.labels[batch].float()
            )
            (loss + ranks.kl()).backward()
            optimizer.step()
            optimizer.zero_grad()
            ranks.step()
            losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    held_back = slice(train.stop, None)
    with torch.no_grad():
        probabilities = model.eval()(data.numbers[held_back], data.categories[held_back]).sigmoid()
    assert click_scores(probabilities, data.labels[held_back])["auc"] > 0.9
    total = rf.accounting(model).total
    assert total.final_parameters < total.training_parameters_at_start
