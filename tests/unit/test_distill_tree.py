"""A tree gives every prompt the logits that it has alone, and a group's loss follows its rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from batchfact.distill.losses import Group, branch_losses, margins, weighted_loss
from batchfact.distill.tree import Branch, common_prefix, grow, num_tokens, use_trees
from tests.tiny_models import save_llama

PREFIX = tuple(range(10, 60))
BRANCHES = (
    Branch((*PREFIX, 300, 301, 302), (400,)),
    Branch((*PREFIX, 303), (401, 402, 403, 404)),
    Branch((*PREFIX, 304, 305, 306, 307, 308, 309, 310), (405, 400)),
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def plain_logits(model: torch.nn.Module, branch: Branch) -> torch.Tensor:
    ids = torch.tensor([[*branch.prompt, *branch.completion[:-1]]])
    return model(ids, logits_to_keep=len(branch.completion)).logits[0]


@pytest.mark.parametrize("branches", [BRANCHES, BRANCHES[1:2]], ids=["three", "one"])
def test_every_target_has_the_logits_of_its_prompt_alone(llama: Path, branches: tuple[Branch, ...]):
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    with torch.no_grad():
        alone = torch.cat([plain_logits(model, branch) for branch in branches])
        use_trees(model)
        tree = grow(branches)
        together = model(**tree.inputs, use_cache=False).logits[0]
    assert tree.inputs["input_ids"].shape[1] == num_tokens(branches)
    assert alone.std() > 0.1
    torch.testing.assert_close(together, alone, atol=2e-4, rtol=1e-4)


def test_gradients_are_those_of_the_prompts_alone(llama: Path):
    plain = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    use_trees(packed)
    torch.stack([plain_logits(plain, branch).logsumexp(-1).sum() for branch in BRANCHES]).sum().backward()
    packed(**grow(BRANCHES).inputs, use_cache=False).logits.logsumexp(-1).sum().backward()
    for (name, one), other in zip(plain.named_parameters(), packed.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=2e-3, rtol=1e-3, msg=name)


def test_weights_in_float32_can_be_trained_in_bfloat16(llama: Path):
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    use_trees(model)
    tree = grow(BRANCHES)
    exact = model(**tree.inputs, use_cache=False).logits[0]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(**tree.inputs, use_cache=False).logits[0].float()
    rounded.logsumexp(-1).sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())
    assert (rounded - exact).abs().mean() < 0.1 * exact.std()


def test_prompts_that_are_beginnings_of_others_keep_a_token_of_their_own():
    assert common_prefix([(1, 2, 3), (1, 2, 3)]) == 2
    assert common_prefix([(1, 2), (1, 2, 3)]) == 1
    assert common_prefix([(1, 2), (3, 4)]) == 0
    assert common_prefix([(1,), (1, 2)]) == 0


def test_a_sliding_window_is_refused(llama: Path):
    model = AutoModelForCausalLM.from_pretrained(llama)
    use_trees(model)
    with pytest.raises(ValueError, match="sliding_window cannot be trained"):
        model(**grow(BRANCHES).inputs, sliding_window=16, use_cache=False)


def test_a_branchs_loss_is_the_mean_over_its_completion():
    logits = torch.zeros(3, 4)
    logits[2, 1] = 5.0
    found = branch_losses(logits, torch.tensor([0, 3, 1]), torch.tensor([0, 0, 1]))
    assert float(found[0]) == pytest.approx(math.log(4))
    assert float(found[1]) == pytest.approx(math.log(math.exp(5) + 3) - 5, rel=1e-4)


def test_spellings_of_a_label_add_up():
    logits = torch.tensor([[9.0, 9.0, 9.0], [1.0, 1.0, 1.0]])
    assert margins(logits, torch.tensor([1]), ((0, 1), (2,))).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("each", 2.0 * 3.0), ("any", 2.0 * 1.0), ("all", 2.0 * (0.75 * 3.0 + 0.25 * 1.0))],
)
def test_each_rule_takes_the_windows_that_it_names(rule: str, expected: float):
    losses, worst_first = torch.tensor([7.0, 1.0, 5.0]), torch.tensor([0.0, -2.0, 1.0])
    group = Group(branches=(1, 2), rule=rule, weight=2.0)  # type: ignore[arg-type]  # a test's plain string
    assert float(weighted_loss(losses, worst_first, [group], lowest_share=0.25)) == pytest.approx(expected)
