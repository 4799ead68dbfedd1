"""Every Python block of the README runs, one after the other, as a reader would run them."""

import re
from pathlib import Path

import pytest
import torch

import rankfold as rf

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@pytest.fixture(scope="module")
def after_the_readme(tmp_path_factory):
    """What a reader has at hand in the end, from a model and a loader of their own at the start."""
    torch.manual_seed(0)
    loader = [(torch.randn(16, 64), torch.randint(10, (16,))) for _ in range(40)]
    names = {"model": make_model(), "loader": loader, "epochs": 1, "make_model": make_model}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        for block in BLOCKS:
            exec(compile(block, str(README), "exec"), names)
        names["saved"] = sorted(path.name for path in Path("small").iterdir())
    return names


def test_the_five_lines_leave_a_trained_and_saved_model(after_the_readme):
    assert len(BLOCKS) >= 5
    assert float(after_the_readme["ranks"].beta) == 0.5
    assert after_the_readme["saved"] == ["model.safetensors", "rankfold.json"]
    assert after_the_readme["std"].shape == (16, 10)


def test_what_is_loaded_predicts_as_what_was_saved(after_the_readme):
    x, model, fresh, plain = (after_the_readme[name] for name in ("x", "model", "fresh", "plain"))
    assert torch.equal(fresh(x), model.eval()(x))
    torch.testing.assert_close(plain(x), fresh(x), rtol=1e-4, atol=1e-5)


def test_single_layers_have_their_own_settings(after_the_readme):
    network = after_the_readme["network"]
    assert isinstance(network[0].config, rf.CP)
    assert isinstance(network[2].config, rf.TT)


def test_the_links_of_the_readme_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
