"""The Trainer callback trains, prunes, logs and resumes as the plain loop does."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import rankfold as rf

EXAMPLES, LENGTH = 48, 6
EPOCHS, BATCH = 12, 4
KL_WEIGHT = 0.3


class Sentences(Dataset):
    """Every word is the one before plus one, so there is something to learn."""

    def __init__(self, masked: bool = False) -> None:
        start = torch.randint(0, 30, (EXAMPLES, 1), generator=torch.Generator().manual_seed(1))
        self.words = (start + torch.arange(LENGTH)) % 32
        self.labels = self.words.clone()
        if masked:
            self.labels[:, ::2] = -100

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, n: int) -> dict:
        return {"input_ids": self.words[n], "labels": self.labels[n]}


def make_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLMLoss"))
    return rf.tensorize_(model, rf.CP(max_rank=8), ["transformer.wte", "lm_head"])


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(rf.param_groups(model, lr=1e-2))


def make_trainer(model: nn.Module, callback, folder, **options):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Seeds(TrainerCallback):  # the same noise at the same step
        def on_step_begin(self, args, state, control, **rest):
            torch.manual_seed(state.global_step)

    settings = {
        "output_dir": str(folder),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant",
        "logging_steps": 6,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    arguments = TrainingArguments(**settings | options)
    optimizers = (make_optimizer(model), None)
    callbacks = [callback, Seeds()]
    return Trainer(model, arguments, train_dataset=Sentences(), optimizers=optimizers, callbacks=callbacks)


def plain_loop(model: nn.Module, *, accumulate: int, clip: float, num_data: int, half: bool) -> None:
    optimizer, data = make_optimizer(model), Sentences()
    batches = [slice(n, n + BATCH) for n in range(0, EXAMPLES, BATCH)]
    ranks = rf.RankDetermination(model, optimizer, num_data, EPOCHS * len(batches) // accumulate, kl_weight=KL_WEIGHT)
    model.train()
    for _ in range(EPOCHS):
        for n, batch in enumerate(batches):
            if n % accumulate == 0:
                torch.manual_seed(ranks.num_steps)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                # as the Trainer does, divided by the labels of all accumulated batches
                terms = accumulate * BATCH * LENGTH
                nll = model(input_ids=data.words[batch], labels=data.labels[batch], num_items_in_batch=terms).loss
            (nll + ranks.kl() / accumulate).backward()
            if (n + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                ranks.step()


@pytest.mark.parametrize(("accumulate", "clip", "half"), [(1, 1.0, False), (3, 0.1, False), (2, 0.5, True)])
def test_it_does_what_the_plain_loop_does(tmp_path, accumulate, clip, half):
    from rankfold.integrations.transformers import RankDeterminationCallback

    model = make_model()
    twin = copy.deepcopy(model)
    callback = RankDeterminationCallback(kl_weight=KL_WEIGHT)
    options = {"gradient_accumulation_steps": accumulate, "max_grad_norm": clip, "bf16": half}
    make_trainer(model, callback, tmp_path, **options).train()
    plain_loop(twin, accumulate=accumulate, clip=clip, num_data=callback.ranks.num_data, half=half)
    assert callback.ranks.num_data == EXAMPLES * LENGTH
    assert callback.ranks.num_steps == callback.ranks.schedule.total_steps == EPOCHS * EXAMPLES // BATCH // accumulate
    assert accumulate > 1 or callback.ranks.history, "ranks are cut while it trains"
    ranks = [tensor.format.ranks for tensor in callback.ranks.tensors.values()]
    assert ranks == [m.format.ranks for m in twin.modules() if isinstance(m, rf.bayesian_tensor.BayesianTensor)]
    for name, value in twin.state_dict().items():
        if name.endswith("c_attn.bias"):
            continue  # the keys' bias has no gradient but rounding errors, which Adam blows up
        atol = 5e-3 if half else 2e-3  # in bfloat16 the order of sums is felt
        torch.testing.assert_close(model.state_dict()[name], value, rtol=5e-3, atol=atol, msg=lambda m, n=name: n + m)


def test_it_logs_and_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path):
    from rankfold.integrations.transformers import STATE_FILE, RankDeterminationCallback

    ends = []
    for interrupted in (False, True):
        model, callback = make_model(), RankDeterminationCallback(kl_weight=KL_WEIGHT)
        saving = {"save_strategy": "steps", "save_steps": 90}
        trainer = make_trainer(model, callback, tmp_path, **saving)
        callback.attach(trainer)
        assert trainer.callback_handler.callbacks.count(callback) == 1
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-90") if interrupted else None)
        ends.append({**model.state_dict(), "beta": callback.ranks.beta})
        assert callback.ranks.num_steps == 144
        assert interrupted or callback.ranks.history[0][0] < 90, "the checkpoint has fewer ranks"
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    last = trainer.state.log_history[-2]
    assert last["step"] == 144
    assert last["rankfold/parameters"] == rf.accounting(model).total.final_parameters
    assert last["rankfold/ranks/transformer.wte"] == sum(model.transformer.wte.tensor.format.ranks)
    assert last["rankfold/kl_nats"] > 0
    assert last["rankfold/beta"] > 0
    assert last["loss"] < 4.0
    state = json.loads((tmp_path / "checkpoint-144" / "trainer_state.json").read_text())
    assert any("rankfold/ranks" in entry for entry in state["log_history"])
    (tmp_path / "checkpoint-144" / STATE_FILE).unlink()
    again = make_trainer(make_model(), RankDeterminationCallback(), tmp_path, num_train_epochs=EPOCHS + 1)
    with pytest.raises(FileNotFoundError, match=r"rankfold_ranks\.pt is missing, which holds the state of the rank"):
        again.train(resume_from_checkpoint=True)


def test_without_the_wrapper_of_half_precision_a_loaded_model_is_exactly_the_trained_one(tmp_path):
    """As the page says: Accelerate leaves autocast in the model's ``forward``."""
    from rankfold.integrations.transformers import RankDeterminationCallback

    model = make_model()
    trainer = make_trainer(model, RankDeterminationCallback(), tmp_path, max_steps=2, bf16=True)
    trainer.train()
    rf.save(model, tmp_path / "model")
    words, loaded = Sentences().words[:4], rf.load(make_model(), tmp_path / "model").eval()
    with torch.no_grad():
        expected = loaded(words).logits
        assert not torch.equal(model.eval()(words).logits, expected)
        plain = trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        assert torch.equal(plain(words).logits, expected)


def test_the_kl_counts_once_under_a_grad_scaler():
    """Gradients scaled by 2¹⁰ and unscaled again are those without a scaler."""
    model = rf.Linear(12, 5, config=rf.CP(4, inference="map"))
    optimizer = torch.optim.SGD(rf.param_groups(model))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, warmup_steps=1)
    ranks.beta.fill_(1.0)
    x = torch.randn(3, 12)
    (model(x).square().mean() + ranks.kl()).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    ranks.kl_backward(scaler)
    scaler.scale(model(x).square().mean()).backward()
    scaler.unscale_(optimizer)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_labels_are_counted_and_ignored_ones_left_out():
    from transformers import default_data_collator

    from rankfold.integrations.transformers import count_terms

    def loader(data, collate=default_data_collator):
        return torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate)

    model = make_model()
    assert count_terms(loader(Sentences()), model) == EXAMPLES * LENGTH
    assert count_terms(loader(Sentences(masked=True)), model) == EXAMPLES * LENGTH // 2
    classes = [{"x": torch.randn(3), "label": n % 2} for n in range(100)]
    assert count_terms(loader(classes), model) == 100

    class Stream(IterableDataset):
        """Knows its length, but shows no example before its turn."""

        def __len__(self) -> int:
            return 100

        def __iter__(self):
            return iter(classes)

    assert count_terms(loader(Stream()), model) is None


def make_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, bos_token_id=0, eos_token_id=0))


@pytest.mark.parametrize(("make", "labels"), [(make_model, LENGTH), (make_llama, LENGTH - 1)])
def test_labels_are_counted_as_the_trainer_counts_them(tmp_path, make, labels):
    from rankfold.integrations.transformers import RankDeterminationCallback, count_terms

    trainer = make_trainer(make(), RankDeterminationCallback(), tmp_path)
    loader = trainer.get_train_dataloader()
    _, counted = trainer.get_batch_samples(iter(loader), len(loader), torch.device("cpu"))
    assert count_terms(loader, trainer.model) == counted == EXAMPLES * labels


def test_mistakes_are_named(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    from rankfold.integrations.transformers import RankDeterminationCallback

    with pytest.raises(
        TypeError, match=r"RankDeterminationCallback has no option 'klweight'; did you mean 'kl_weight'"
    ):
        RankDeterminationCallback(klweight=2.0)
    with pytest.raises(TypeError, match=r"no option 'numdata'; did you mean 'num_data'"):
        RankDeterminationCallback(numdata=3)
    with pytest.raises(TypeError, match=r"attach takes a transformers.Trainer, got 'x'"):
        RankDeterminationCallback().attach("x")
    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dense = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    with pytest.raises(ValueError, match=r"no tensorized layer; call rankfold.tensorize_"):
        make_trainer(dense, RankDeterminationCallback(), tmp_path).train()
