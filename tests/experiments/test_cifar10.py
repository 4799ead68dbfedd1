"""The CIFAR-10 task: counts of its foldings, augmentation, data, settled batch norm; ResNet-18."""

from pathlib import Path

import pytest
import torch
from data.tiny_cifar10 import make_records, write_archive
from torch import nn

import rankfold as rf
from rankfold.experiments import cifar10_resnet18
from rankfold.experiments.batch_norm import batches_of_draws, settle
from rankfold.experiments.cifar10 import TASK, augment, load, standardised
from rankfold.experiments.spec import Spec, read_rows
from rankfold.experiments.task import Data, Examples
from rankfold.layers import TensorizedLayer

CPU = torch.device("cpu")
FORMATS = ("cp", "tucker", "tt", "ttm")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
# What the paper prints for training at a fixed rank, running statistics of batch norm included.
PAPER = {"cp": 652_748, "tucker": 653_438, "tt": 649_328, "ttm": 641_898}


def tensorized(task, format, inference="fixed"):
    configs = task.tensor_configs(Spec("fr", format), inference)
    return rf.tensorize_(task.network(), None, overrides=configs)


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return {format: tensorized(TASK, format) for format in FORMATS}


@pytest.mark.parametrize("format", FORMATS)
def test_fixed_rank_training_has_the_papers_number_of_parameters(format, networks):
    account = rf.accounting(networks[format])
    assert account.total.final_parameters + account.num_buffers == pytest.approx(PAPER[format], rel=0.02)
    assert account.total.dense_parameters + account.num_buffers == 13_942_602


@pytest.mark.parametrize("format", FORMATS)
def test_all_but_the_first_convolution_and_the_last_layer_are_tensorized(format, networks):
    model = networks[format]
    names = {name for name, module in model.named_modules() if isinstance(module, TensorizedLayer)}
    assert names == {"conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2"}
    assert type(model.conv1) is nn.Conv2d
    assert type(model.fc3) is nn.Linear


@pytest.mark.parametrize("format", FORMATS)
def test_every_layer_starts_with_the_standard_deviation_of_torch(format, networks):
    dense = TASK.network()
    for name in TASK.foldings[format].layers:
        found = networks[format].get_submodule(name).weight.std().item()
        assert found == pytest.approx(dense.get_submodule(name).weight.std().item(), rel=0.1)


@pytest.mark.parametrize("format", FORMATS)
def test_a_sampled_step_of_every_format_is_finite(format):
    torch.manual_seed(0)
    model = tensorized(TASK, format, "bayes")
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    nn.functional.cross_entropy(model(x), y).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# Augmentation ------------------------------------------------------------------------------------------


def views(image):
    """All that may become of an image (3, 32, 32): crops of its reflected border, and their mirror images."""
    padded = nn.functional.pad(image[None], (4, 4, 4, 4), mode="reflect")[0]
    crops = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    return torch.stack([*crops, *(crop.flip(2) for crop in crops)]).flatten(1)


def test_each_output_is_a_crop_of_its_input_or_its_mirror_image():
    torch.manual_seed(0)
    images = torch.rand(24, 3, 32, 32)
    (moved,) = augment((images,))
    assert moved.shape == images.shape
    found = [(views(image) == after.flatten()).all(1).nonzero() for image, after in zip(images, moved, strict=True)]
    assert all(len(which) == 1 for which in found)
    assert len({int(which) for which in found}) > 12  # images move by themselves


def test_all_shifts_come_up_and_half_of_the_images_are_mirrored():
    torch.manual_seed(0)
    columns = torch.arange(32.0).expand(4000, 3, 32, 32)
    (moved,) = augment((columns,))
    middle = moved[:, 0, 0, 10:20]
    mirrored = middle[:, 1] < middle[:, 0]
    assert 0.45 < mirrored.double().mean() < 0.55
    shifts = moved[:, 0, 0, 15] - torch.where(mirrored, 16.0, 15.0)
    assert shifts.unique().tolist() == list(range(-4, 5))


def test_the_seed_decides():
    images = torch.rand(8, 3, 32, 32)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(augment((images,))[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# Data ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve images in each of the six batches."""
    root = tmp_path_factory.mktemp("data")
    write_archive(root / "cifar10", make_records(12))
    return root


def test_the_validation_split_holds_a_tenth_of_the_training_images_back(folder):
    test, validation = (load(split, CPU, folder, False) for split in ("test", "validation"))
    assert [len(test.train), len(test.evaluation)] == [60, 12]
    assert [len(validation.train), len(validation.evaluation)] == [54, 6]
    together = torch.cat([validation.train.inputs[0], validation.evaluation.inputs[0]])
    assert torch.equal(together.sum((1, 2, 3)).sort()[0], test.train.inputs[0].sum((1, 2, 3)).sort()[0])


def test_standardised_pixels():
    pixels = standardised(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1))
    torch.testing.assert_close(pixels[0, 0].item(), -0.49140 / 0.24703)
    torch.testing.assert_close(pixels[1, 2].item(), (1 - 0.44653) / 0.26159)


# Batch norm ---------------------------------------------------------------------------------------------


def examples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Examples((3.0 + 2.0 * torch.randn(count, 4, 5, 5, generator=generator),), torch.zeros(count).long())


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(rf.Conv2d(4, 6, 3, config=rf.CP(5)), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())


def test_settling_gives_the_statistics_of_the_posterior_mean_on_training_examples():
    model, data = small_network(), Data(examples(64), examples(8))
    settle(model, data)
    truth = model[0].to_dense()(data.train.inputs[0])
    torch.testing.assert_close(model[1].running_mean, truth.mean((0, 2, 3)))
    torch.testing.assert_close(model[1].running_var, truth.var((0, 2, 3)))


def test_draws_get_their_statistics_from_training_examples():
    data = Data(examples(600), examples(8))
    batches = batches_of_draws(small_network(), data)
    assert [batch[0].shape[0] for batch in batches] == [500, 100]
    torch.testing.assert_close(torch.cat([batch[0] for batch in batches]), data.train.inputs[0])
    assert batches_of_draws(nn.Conv2d(4, 6, 3), data) is None


# Tables -------------------------------------------------------------------------------------------------


def test_the_table_has_every_method_in_every_format():
    rows = read_rows(EXPERIMENTS / "cifar10")
    methods = ("fr", "tc-mr", "tc-or", "ard-lu", "ard-hc")
    assert set(rows) == {"dense", *(f"{format}-{method}" for format in FORMATS for method in methods)}
    assert len({(spec.epochs, spec.batch_size, spec.lr, spec.decay) for spec in rows.values()}) == 1


def test_resnet18_is_not_made_while_commands_are_imported():
    assert all(conv.weight.is_meta for conv in cifar10_resnet18._convolutions().values())


@pytest.mark.parametrize("format", cifar10_resnet18.FOLDINGS)
def test_resnet18_is_tensorized_but_for_its_stem_and_head(format):
    rows = read_rows(EXPERIMENTS / "cifar10-resnet18")
    assert {spec.format for spec in rows.values()} == {None, *cifar10_resnet18.FOLDINGS}
    torch.manual_seed(0)
    model = tensorized(cifar10_resnet18.TASK, format)
    plain = [name for name, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert plain == ["stem", "head"]
    assert rf.accounting(model).total.compression > 4
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
