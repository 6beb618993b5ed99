"""LoRA with merged matrices computes what PEFT's own layers compute, before and after the adapter changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from batchfact.distill.loading import load_model
from batchfact.distill.merged_lora import merge_while_training
from batchfact.distill.recipe import Lora, Train
from batchfact.errors import UsageError
from tests.tiny_models import save_llama

IDS = torch.tensor([[*range(10, 40)]])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def tuned(llama: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, **settings)
    return get_peft_model(model, lora)


def test_a_training_of_some_steps_is_the_same_up_to_rounding(llama: Path):
    plain, merged = tuned(llama), tuned(llama)
    merge_while_training(merged)
    losses = []
    for model in (plain, merged):
        tuned_weights = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(tuned_weights, lr=1e-3, fused=True)  # as the Trainer has it
        for _ in range(3):
            loss = model(IDS, labels=IDS).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], abs=1e-4) and abs(losses[0] - losses[2]) > 1e-3
    state = merged.state_dict()
    assert state.keys() == plain.state_dict().keys()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(state[name], weight, atol=2e-4, rtol=1e-3, msg=name)


def test_gradients_are_for_the_adapter_alone(llama: Path):
    plain, merged = tuned(llama), tuned(llama)
    merge_while_training(merged)
    for model in (plain, merged):
        model(IDS, labels=IDS).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), merged.parameters(), strict=True):
        if one.grad is None:
            assert other.grad is None, name
        else:
            torch.testing.assert_close(other.grad, one.grad, atol=1e-4, rtol=1e-3, msg=name)


def test_layers_that_cannot_be_merged_are_refused(llama: Path):
    with pytest.raises(ValueError, match="dropout or DoRA"):
        merge_while_training(tuned(llama, lora_dropout=0.1))


def test_transposed_weights_are_refused():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
    lora = LoraConfig(r=4, target_modules=["c_proj"], fan_in_fan_out=True)
    with pytest.raises(ValueError, match="transposed weights"):
        merge_while_training(get_peft_model(model, lora))


def test_an_adapter_with_dropout_is_no_start_for_merged_layers(tmp_path: Path, llama: Path):
    tuned(llama, lora_dropout=0.1).save_pretrained(tmp_path / "adapter")
    settings = Train(bf16=False, lora=Lora(rank=4, alpha=8, merged=True))
    with pytest.raises(UsageError, match=r"train.lora.merged: layers with dropout .*; set it to false"):
        load_model(llama, settings, tmp_path / "adapter")
