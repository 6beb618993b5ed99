"""transformers' Trainer over document trees: one tree a micro-batch, its loss by groups, its evaluation by the fold.

Documents flow in; a tuned model and its log flow out. Optimiser, schedule, checkpoints, resume, logging and
distribution over devices (Accelerate) are the Trainer's own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from batchfact.distill.losses import branch_losses, margins, weighted_loss
from batchfact.distill.measures import Scored, measure
from batchfact.distill.recipe import Train
from batchfact.distill.tree import grow
from batchfact.distill.visits import Document, Visit, Visits

Batch = dict[str, Any]
KEPT_CHECKPOINTS = 3
"""The newest ones, beside the best."""


class TreeSet(Dataset[Batch]):  # type: ignore[misc]  # torch has no types for mypy here
    """One epoch's visits: each labelled summary's document, and as many documents without as are asked for.

    A document with many labelled summaries is visited as often as it takes to show each once.

    What a visit shows is drawn from the seed, the epoch and the document, so that it is the same on every device and
    after a resume.
    """

    def __init__(self, documents: Sequence[Document], visits: Visits, *, synthetic_share: float, seed: int) -> None:
        self._labelled = [document for document in documents if not document.is_synthetic]
        self._synthetic = [document for document in documents if document.is_synthetic]
        self._synthetic_share = synthetic_share
        self._visits = visits
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw an epoch's documents; the Trainer calls this through Accelerate's data loader."""
        self._epoch = int(epoch)
        rng = random.Random(f"{self._seed} {self._epoch}")
        most = self._visits.settings.max_summaries
        labelled = [part for document in self._labelled for part in document.parts(most, rng)]
        wanted = round(self._synthetic_share * len(labelled)) if labelled else len(self._synthetic)
        self._documents = [*labelled, *rng.sample(self._synthetic, min(wanted, len(self._synthetic)))]

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, number: int) -> Batch:
        rng = random.Random(f"{self._seed} {self._epoch} {number}")
        return batch_of(self._visits.train(self._documents[number], rng))


def batch_of(visit: Visit) -> Batch:
    """A visit as the Trainer passes it on: tensors, which it moves to the device, and the groups."""
    tree = grow(visit.branches)
    return {
        "tree": tree.inputs,
        "targets": tree.targets,
        "branch_of": tree.branch_of,
        "last": tree.last,
        "label_ids": visit.label_ids,
        "groups": visit.groups,
    }


def only(batches: Sequence[Batch]) -> Batch:
    """The collator: a tree is a micro-batch."""
    (batch,) = batches
    return batch


class TreeTrainer(Trainer):  # type: ignore[misc]  # neither has transformers
    """Args: `visits` makes the trees of test documents; `lowest_share` is the recipe's; others are Trainer's."""

    loss_is_scaled_for_ga = True  # a step's loss is divided by the weights of all its trees, below

    def __init__(
        self,
        *,
        visits: Visits,
        lowest_share: float,
        **settings: Any,
    ) -> None:
        super().__init__(data_collator=only, **settings)
        self._visits = visits
        self._lowest_share = lowest_share
        self.control: Any

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], torch.Tensor]:
        """A step's trees on this device, and the sum of weights of the step's trees on all devices."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        weight = torch.tensor(sum(group.weight for batch in batches for group in batch["groups"]), device=device)
        return batches, self.accelerator.gather(weight).sum()

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """This tree's part of the step's mean loss, `num_items_in_batch` being the step's weights."""
        logits = self._logits(model, inputs)
        losses = branch_losses(logits, inputs["targets"], inputs["branch_of"])
        found = margins(logits.detach(), inputs["last"], inputs["label_ids"])
        total = weighted_loss(losses, found, inputs["groups"], lowest_share=self._lowest_share)
        # Devices' gradients are averaged, while the weights are summed over devices.
        loss = total * self.accelerator.num_processes / num_items_in_batch
        return (loss, logits) if return_outputs else loss

    def evaluate(
        self,
        eval_dataset: Sequence[Document] | None = None,
        ignore_keys: list[str] | None = None,  # noqa: ARG002 - the Trainer's signature
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Score the test documents as a run would, fold by the lowest window, and measure."""
        documents = eval_dataset if eval_dataset is not None else self.eval_dataset
        most = self._visits.settings.max_summaries
        scored = self.score([part for document in documents for part in document.parts(most)])
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measure(scored).items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()  # type: ignore[untyped-decorator]  # neither has torch
    def score(self, documents: Sequence[Document]) -> dict[str, list[Scored]]:
        """Each summary's lowest margin with its label, by data set; documents are shared among the devices."""
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        model = self.model_wrapped
        model.eval()
        found: list[tuple[str, Scored]] = []
        for first in range(0, len(documents), size):
            # All devices run as often as each other, which sharded models need; what is doubled is not counted.
            document = documents[min(first + rank, len(documents) - 1)]
            visit = self._visits.test(document)
            inputs = self._prepare_inputs(batch_of(visit))
            with self.compute_loss_context_manager():
                logits = self._logits(model, inputs)
            of_branches = margins(logits, inputs["last"], inputs["label_ids"]).tolist()
            if first + rank < len(documents):
                found += [
                    (summary.data_set, (min(of_branches[number] for number in group.branches), summary.label))
                    for summary, group in zip(visit.summaries, visit.groups, strict=True)
                ]
        model.train()
        by_set: dict[str, list[Scored]] = defaultdict(list)
        for name, row in gather_object(found) if size > 1 else found:
            by_set[name].append(row)
        return by_set

    @staticmethod
    def _logits(model: Any, inputs: Batch) -> torch.Tensor:
        """(num_targets, vocab), float32."""
        return model(**inputs["tree"], use_cache=False).logits[0].float()


def arguments(settings: Train, output: Path, *, has_tests: bool) -> TrainingArguments:
    """The recipe's optimisation in the Trainer's terms; without test documents nothing is evaluated."""
    least = settings.min_learning_rate_share
    return TrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=settings.trees_a_step,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr" if least else "cosine",
        lr_scheduler_kwargs={"min_lr_rate": least} if least else None,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        adam_beta2=settings.adam_beta2,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.bf16,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        save_strategy="steps",
        save_steps=settings.eval_steps,
        save_total_limit=KEPT_CHECKPOINTS,
        eval_strategy="steps" if has_tests else "no",
        eval_steps=settings.eval_steps,
        load_best_model_at_end=has_tests,
        metric_for_best_model="eval_roc_auc" if has_tests else None,
        greater_is_better=True if has_tests else None,
        logging_steps=settings.log_steps,
        logging_first_step=True,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        seed=settings.seed,
    )
