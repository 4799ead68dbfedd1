"""Every example runs from the command line, without a warning, and cuts ranks."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# One process for all of them: importing the frameworks takes longer than training.
TOGETHER = ["plain_pytorch", "trainer_gpt2", "trainer_bert", "lightning_digits"]
SCRIPT = """
import runpy, sys, warnings
for path in sys.argv[1:]:
    print("example", path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # advice of Lightning
        warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")
        runpy.run_path(path, run_name="__main__")
"""


def run(*command: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    text = run("-c", SCRIPT, *(str(EXAMPLES / f"{name}.py") for name in TOGETHER))
    parts = re.split(r"^example .*/(\w+)\.py\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", TOGETHER)
def test_example(outputs: dict[str, str], name: str) -> None:
    total = outputs[name].rpartition("total")[2]
    before, after = (int(number.replace(",", "")) for number in re.search(r"([\d,]+)→([\d,]+)", total).groups())
    assert after < before, "ranks fell"
    if accuracy := re.search(r"accuracy ([\d.]+)", outputs[name]):
        assert float(accuracy[1]) > 0.8


def test_processes_prune_at_the_same_step() -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    text = run(*launch, str(EXAMPLES / "ddp.py"))
    found = {rank: re.findall(rf"process {rank}, (step .*?\))", text) for rank in (0, 1)}
    assert found[0] == found[1]
    assert found[0]
    assert "total" in text


def test_sharded_processes_find_the_same_ranks() -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    text = run(*launch, str(EXAMPLES / "fsdp2.py"))
    found = dict(re.findall(r"process (\d), (.*)", text))
    assert found["0"] == found["1"] != "0.tensor: ranks (10, 10)"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_without_torchrun_its_command_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match=rf"torchrun --standalone --nproc-per-node 2 examples/{name}\.py"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize(
    ("model", "digits", "said"),
    [
        ("missing.onnx", None, "cannot classify digits with .*missing.onnx"),
        ("words.csv", None, "cannot classify digits with .*words.csv"),
        ("", "missing.csv", "cannot read the digits in .*missing.csv"),
        ("", "words.csv", "cannot read the digits in .*words.csv"),
        ("", "short.csv", "short.csv must have a label and 64 pixels"),
        ("", "empty.csv", "empty.csv must have a label and 64 pixels"),
    ],
)
def test_a_wrong_file_for_onnxruntime_is_named_in_one_line(
    model: str, digits: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "words.csv": "label,pixel\none,two\n",
        "short.csv": "label,pixel\n1,2\n",
        "empty.csv": "",
    }.items():
        (tmp_path / name).write_text(text)
    arguments = [] if digits is None else ["--digits", str(tmp_path / digits)]
    monkeypatch.setattr(sys, "argv", ["classify.py", str(tmp_path / model), *arguments])
    with pytest.raises(SystemExit, match=said) as stopped:
        runpy.run_path(str(EXAMPLES / "onnx_digits" / "classify.py"), run_name="__main__")
    assert "\n" not in str(stopped.value)


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*TOGETHER, "ddp", "fsdp2"}
