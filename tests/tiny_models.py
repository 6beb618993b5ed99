"""Tiny models with random weights and a tokenizer trained here, saved as the folders that engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from tests.small_tokenizers import CORPUS, byte_level

SIZE = {"vocab_size": 800}


def save_llama(folder: Path, *, hidden_size: int = 32) -> Path:
    """A decoder of four heads with the byte-level tokenizer and its chat template."""
    torch.manual_seed(7)
    pretrained = byte_level().pretrained
    config = LlamaConfig(
        **SIZE,
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=pretrained.eos_token_id,
        bos_token_id=pretrained.bos_token_id,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    pretrained.save_pretrained(folder)
    return folder


def save_t5(folder: Path) -> Path:
    """An encoder-decoder with a SentencePiece-like unigram tokenizer that ends every text with </s>, as T5's does."""
    torch.manual_seed(7)
    pretrained = t5_tokenizer()
    config = T5Config(
        **SIZE,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        initializer_factor=0.5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    pretrained.save_pretrained(folder)
    return folder


def t5_tokenizer() -> Any:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        [*CORPUS, *["Yes No yes no YES NO"] * 200],
        trainers.UnigramTrainer(
            vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
