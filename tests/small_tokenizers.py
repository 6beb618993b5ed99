"""Tokenizers of the three families that models use, trained here on a few sentences, and never downloaded."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from batchfact.engines.tokenizer import FastTokenizer

CORPUS = [
    "Yes. No. yes no YES NO. The mayor of Paris said that the bridge would open in 2019, two years late.",
    "Document:\n\nSentence:\n\nAnswer: Yes\nAnswer: No\n<document>\n</document>\n\n\n  - one\n  - two\n",
    "He said: \"We can't say when it'll be done.\" It's still under warranty, isn't it? Café, naïve, 北京是首都。",
    "Yes No Yes No Yes No Yes No yes no yes no yes no",
    "consistent inconsistent supported. unsupported! The answer is yes. The answer is no.\n\nIs it so?\n",
] * 8

# The pattern of Llama 3 and Qwen 2: punctuation takes the line breaks behind it into its own token.
TAKES_LINE_BREAKS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def byte_level() -> FastTokenizer:
    """As SmolLM2: byte-level BPE, a BOS that is named but never added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained_on_bytes(tokenizer)


@cache
def line_breaking() -> FastTokenizer:
    """As Llama 3 and Qwen 2: a text that ends in a full stop merges with the line breaks that follow."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(TAKES_LINE_BREAKS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _trained_on_bytes(tokenizer)


@cache
def sentencepiece() -> FastTokenizer:
    """As Llama 2: a dummy space in front of every text, byte fallback, a BOS in front of every prompt."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    )
    state: dict[str, Any] = json.loads(trained.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return FastTokenizer(AddsBos(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"))


class AddsBos(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Puts its BOS in front when called, as Llama's own class does."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return {"input_ids": [self.bos_token_id, *ids] if add_special_tokens else ids}


def _trained_on_bytes(tokenizer: Tokenizer) -> FastTokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    chat = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return FastTokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=chat
        )
    )
