"""What is wrapped around a model takes no part in its names, and inner calls none in warnings."""

from functools import partial

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import rankfold as rf
from rankfold.wrapping import unwrapped, warn


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WRAPPERS = {
    "compile": partial(torch.compile, backend="eager"),
    "DataParallel": nn.DataParallel,
    "DDP": DistributedDataParallel,
    "DDP of compile": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
    "compile of DDP": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(rf.Linear(12, 8, config=rf.TTM(3)), nn.Linear(8, 4)).eval()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own, when it compiles
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_and_plain_models_have_the_same_checkpoints_and_reports(wrapper, tmp_path):
    model, x = network(), torch.randn(5, 12)
    wrapped = WRAPPERS[wrapper](model)
    assert unwrapped(wrapped) is model
    rf.save(wrapped, tmp_path)
    assert torch.equal(rf.load(network(seed=1), tmp_path)(x), model(x))
    other = WRAPPERS[wrapper](network(seed=1))
    assert rf.load(other, tmp_path) is other
    assert torch.equal(unwrapped(other)(x), model(x))
    assert rf.accounting(wrapped) == rf.accounting(model)
    assert rf.report(wrapped) == rf.report(model)
    torch.testing.assert_close(rf.to_dense(wrapped).state_dict(), rf.to_dense(model).state_dict(), rtol=0.0, atol=0.0)


def test_parts_that_are_wrapped_stay_so():
    model = nn.Sequential(nn.DataParallel(nn.Linear(3, 2)))
    assert unwrapped(model) is model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_in_compiled_code_a_warning_is_only_that():
    @torch.compile(backend="eager")
    def doubled(x):
        warn("look here")
        return 2 * x

    with pytest.warns() as caught:
        assert doubled(torch.ones(())) == 2
    assert [str(one.message) for one in caught if one.category is UserWarning] == ["look here"]
