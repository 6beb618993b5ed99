"""Token ids of a document's prompts: the document tokenised once and joined, against each prompt as one string.

The tokenizer is byte-level BPE, trained here on the same made-up prose, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from batchfact.assembly import Assembler, Joiner
from batchfact.engines.tokenizer import FastTokenizer
from batchfact.records import Data, Prompt, Template, Tokens
from kernels_bench.kernel import Arm, Cost, Kernel, Place, same
from kernels_bench.texts import sentences_of_prose

# (document sentences, windows)
SHAPES = {"tiny": ((4, 2),), "full": ((20, 8), (80, 8))}
LEAD, MIDDLE, CUE = Template("Document:\n"), Template("\n\nStatement: "), Template("\nIs it supported?\nAnswer:")


def kernels(place: Place) -> Iterator[Kernel]:
    tokenizer = make_tokenizer()
    for num_sentences, num_windows in SHAPES[place.size]:
        document = Data(" ".join(sentences_of_prose(num_sentences)))
        windows = sentences_of_prose(num_windows, seed=1)
        yield compare(tokenizer, [(LEAD, document, MIDDLE, Data(window), CUE) for window in windows])


def compare(tokenizer: FastTokenizer, prompts: list[Prompt]) -> Kernel:
    """A group's prompts; the assembler is made anew each time, as for a new document group."""
    joiner, assembler = Joiner(tokenizer), Assembler(tokenizer)
    lengths = [sum(len(part.text) for part in prompt if not isinstance(part, Tokens)) for prompt in prompts]
    cost = Cost(bytes=sum(lengths))

    def assembled() -> list[list[int]]:
        group = assembler.for_group()
        return [group.assemble(prompt) for prompt in prompts]

    return Kernel(
        shape=f"{len(prompts)} prompts of about {lengths[0]:,} characters",
        reference=Arm("whole strings", lambda: [joiner.whole(prompt) for prompt in prompts], cost),
        candidates=(Arm("batchfact.assembly", assembled, cost),),
        check=same,
    )


def make_tokenizer() -> FastTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(sentences_of_prose(500, seed=2), trainer)
    return FastTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
