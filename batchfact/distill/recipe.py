"""A recipe: the TOML file that says from what, how and for what a small scorer is trained.

A file flows in; checked, frozen settings flow out, or a UsageError that names the setting. docs/distillation.md
explains each of them to users.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from batchfact.config import require
from batchfact.errors import UsageError
from batchfact.models.registry import Excerpts, PromptStyle
from batchfact.prompts.loader import PromptVariant

Unit = Literal["summary", "window"]
Side = Literal["train", "test", "both"]


class Set(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One labelled Parquet file.

    `weight` is the data set's share beside the others', once its labels are balanced; `example_weight` sets each
    example's weight instead and balances nothing. `where` are rules that a row must meet (see `labelled.parse_rule`).
    `reason` is a column with a person's reasons, `column.key` where the column holds JSON. `teachers` are in order of
    preference; None is the recipe's order. `side` puts all of it into training or test; `both` splits it by document.
    """

    name: str
    path: str
    units: tuple[Unit, ...] = ("summary",)
    side: Side = "both"
    weight: float = 1.0
    example_weight: float | None = None
    where: tuple[str, ...] = ()
    reason: str | None = None
    teachers: tuple[str, ...] | None = None
    synthetic: bool = False
    licence: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.units), f"the data set {self.name} needs a unit: summary or window", "none")
        require(self.weight > 0, f"the weight of the data set {self.name} must be above 0", self.weight)


class Teacher(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs of `batchfact run --reasoning` by one model, with either paradigm or both."""

    name: str
    summ_nli: tuple[str, ...] = ()
    sent_nli: tuple[str, ...] = ()


class Build(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How labelled pairs become examples.

    `reasoning` false is the paper's T-wo-R, true its T-w-R. `balance` is the power of a data set's number of examples
    that its weight grows with: 0 counts all sets alike, 1 each example. No weight exceeds `max_weight`.
    """

    reasoning: bool = False
    test_share: float = 0.2
    balance: float = 0.5
    max_weight: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.test_share < 1, "build.test_share must lie in [0, 1)", self.test_share)
        require(0 <= self.balance <= 1, "build.balance must lie in [0, 1]", self.balance)
        require(self.max_weight >= 1, "build.max_weight must be at least 1", self.max_weight)


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters on every linear layer, kept in float32 while they are trained.

    `merged` computes with each layer's merged matrix, as `merged_lora` says: faster on a CPU and with narrow layers. It
    takes no dropout, and weights that are not sharded.
    """

    rank: int = 32
    alpha: int = 64
    dropout: float = 0.0
    merged: bool = False

    def __post_init__(self) -> None:
        require(self.rank >= 1, "train.lora.rank must be at least 1", self.rank)
        require(not (self.merged and self.dropout), "train.lora.merged goes with no train.lora.dropout", self.dropout)


class Trees(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a document's examples become one forward pass; lengths are tokens where nothing else is said.

    `document_words` cuts each document, at every visit, to a random number of words between the two, with the
    sentences nearest to what is judged; None shows it whole. `max_summaries` and `max_synthetic` bound one visit's
    labelled and synthetic summaries, `max_synthetic_alone` those of a document that has no others, and `max_windows`
    the windows of one summary; a document with more labelled summaries is visited again for the rest of them.
    `summary_share` is how often a summary of several windows is shown as one statement where it may be shown as both.
    `synthetic_documents` is how many visits of documents without labelled summaries come for each one with.
    """

    max_tokens: int = 4096
    document_words: tuple[int, int] | None = None
    test_document_words: int | None = None
    max_summaries: int | None = None
    max_windows: int | None = None
    max_synthetic: int | None = None
    max_synthetic_alone: int | None = None
    summary_share: float = 0.5
    synthetic_documents: float = 0.5

    def __post_init__(self) -> None:
        require(self.max_tokens >= 16, "trees.max_tokens must be at least 16", self.max_tokens)
        words = self.document_words
        require(words is None or 0 < words[0] <= words[1], "trees.document_words are the least and the most", words)
        require(0 <= self.summary_share <= 1, "trees.summary_share must lie in [0, 1]", self.summary_share)
        require(self.synthetic_documents >= 0, "trees.synthetic_documents must be at least 0", self.synthetic_documents)


class Train(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optimisation; the defaults are those of Xu 2024, appendix B. `lora` None is full fine-tuning.

    `max_steps` ends training earlier than `epochs`. `warmup` is a share of all steps below 1, else a number of steps.
    `eval_steps` is how often the model is saved, and evaluated where there are test examples; `patience` stops training
    after so many evaluations without a better one. `lowest_window_share` is described in `losses`.
    """

    epochs: float = 8.0
    max_steps: int | None = None
    learning_rate: float = 1e-5
    min_learning_rate_share: float = 0.0
    trees_a_step: int = 1
    warmup: float = 0.05
    weight_decay: float = 0.0
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0
    bf16: bool = True
    gradient_checkpointing: bool = False
    lora: Lora | None = None
    lowest_window_share: float = 0.0
    eval_steps: int = 200
    eval_documents: int | None = None
    patience: int | None = None
    log_steps: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.epochs > 0, "train.epochs must be above 0", self.epochs)
        require(self.learning_rate > 0, "train.learning_rate must be above 0", self.learning_rate)
        require(self.trees_a_step >= 1, "train.trees_a_step must be at least 1", self.trees_a_step)
        require(self.eval_steps >= 1, "train.eval_steps must be at least 1", self.eval_steps)
        require(self.patience is None or self.patience >= 1, "train.patience must be at least 1", self.patience)
        share = self.lowest_window_share
        require(0 <= share <= 1, "train.lowest_window_share must lie in [0, 1]", share)


class Card(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model card says that no file knows."""

    licence: str | None = None
    note: str | None = None
    limits: tuple[str, ...] = ()


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. `base` is a model's name, folder or Hugging Face id; `data` are paths below the data folder.

    `excerpts` are what runs with the exported model shall show of documents, for one that is trained on excerpts.
    """

    name: str
    base: str
    prompts: PromptVariant = "full"
    prompt_style: PromptStyle | None = None
    data: tuple[Set, ...] = ()
    teachers: tuple[Teacher, ...] = ()
    build: Build = Build()
    trees: Trees = Trees()
    excerpts: Excerpts | None = None
    train: Train = Train()
    card: Card = Card()

    def __post_init__(self) -> None:
        require(bool(self.data), "a recipe needs at least one [[data]]", "none")
        for kind, names in (("data", [each.name for each in self.data]), ("teachers", list(self.teacher_names))):
            require(len(set(names)) == len(names), f"the names of [[{kind}]] must differ", ", ".join(names))
        for each in self.data:
            unknown = sorted(set(each.teachers or ()) - set(self.teacher_names))
            require(not unknown, f"the data set {each.name} names teachers that [[teachers]] lacks", unknown)

    @property
    def teacher_names(self) -> tuple[str, ...]:
        return tuple(teacher.name for teacher in self.teachers)


def read_recipe(path: Path) -> Recipe:
    """Raises: UsageError if the file is not there, is no TOML, or has an unknown or wrong setting."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(found, Recipe)
    except OSError as error:
        raise UsageError(f"the recipe {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe {path} is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"the recipe {path}: {error}") from error
    except UsageError as error:
        raise UsageError(f"the recipe {path}: {error}") from error
