"""Hugging Face transformers behind the `Engine` protocol: plain, in this process, for any model that it knows.

Token ids flow in, log-probabilities and text flow out. It is the oracle that other engines are compared with, and the
home of encoder-decoder models. Nothing is cached between requests. Only this file of ours computes with torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import CancelScope, to_thread
from msgspec import Struct

from batchfact.engines.answers import cut_text, is_looping, log_sum_exp
from batchfact.engines.base import Capacity, ChooseAnswer, EngineSpec, LabelIds, RequestError, WriteAnswer
from batchfact.engines.batching import Batcher, Job
from batchfact.engines.model_facts import DEFAULT_MAX_MODEL_LEN, read_model, resolve_dtype
from batchfact.engines.tokenizer import EncoderDecoderTokenizer, FastTokenizer, load_tokenizer
from batchfact.engines.vllm_process import log_to
from batchfact.errors import RunFailedError, UsageError, nearest
from batchfact.records import Finish, Usage

if TYPE_CHECKING:
    import torch

UNBOUND_MAX_MODEL_LEN = 2048
"""Tokens where nothing in the model bounds the context: with relative positions memory is the limit."""

UNLIMITED_KV_TOKENS = 1 << 40
"""No cache outlives a batch, so admission has nothing to hold back for."""

MAX_NUM_SEQS, MAX_BATCHED_TOKENS = 16, 8192
"""Bounds of one batch; `--engine-arg max_num_seqs=` and `max_num_batched_tokens=` change them."""

TINY = 1e-30
"""A wait of zero would have no logarithm."""

LONGEST_STOP_MARGIN = 4
"""Tokens looked back at beyond those that could spell the longest stop string."""


class Limits(Struct, frozen=True, kw_only=True):
    """What `--engine-arg` may set; the names are vLLM's."""

    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_BATCHED_TOKENS


class ChooseRequest(Struct, frozen=True):
    prompt_ids: list[int]
    labels: LabelIds


class WriteRequest(Struct, frozen=True):
    prompt_ids: list[int]
    max_tokens: int
    stop: tuple[str, ...]
    schema: str | None
    temperature: float = 0.0
    seed: int = 0


class TransformersFactory:
    """The object behind the entry point `transformers`."""

    def describe(self, spec: EngineSpec) -> dict[str, str]:
        """Raises: UsageError where torch is not installed, the folder holds no model, or a setting is not for us."""
        if find_spec("torch") is None:
            raise UsageError("the transformers engine needs torch: pip install 'batchfact[transformers]'")
        if spec.tensor_parallel_size > 1 or spec.data_parallel_size > 1:
            raise UsageError("the transformers engine runs one copy of the model on one device; several need vLLM")
        if spec.quantization:
            raise UsageError(
                f"the transformers engine cannot quantise to {spec.quantization}; give a model that is stored so"
            )
        limits_of(spec)
        facts = read_model(spec.model)
        device = device_name()
        return {
            "engine": "transformers",
            "engine_version": ".".join(metadata.version("transformers").split(".")[:2]),
            "device": "cpu" if device == "cpu" else "gpu",
            "dtype": resolve_dtype(spec, facts, is_cpu=device == "cpu"),
            "quantization": facts.quantization or "none",
            "max_model_len": str(max_model_len(spec)),
            **({"deterministic": "one request at a time"} if spec.deterministic else {}),
        }

    def load_tokenizer(self, spec: EngineSpec) -> FastTokenizer:
        """Raises: UsageError where the folder holds no tokenizer."""
        is_encoder_decoder = read_model(spec.model).is_encoder_decoder
        return load_tokenizer(spec.model, EncoderDecoderTokenizer if is_encoder_decoder else FastTokenizer)

    @asynccontextmanager
    async def open(self, spec: EngineSpec) -> AsyncIterator[TransformersEngine]:
        """Load the model in a worker thread; leaving the block ends the thread that computes.

        Raises: RunFailedError where the model cannot be loaded.
        """
        tokenizer = await to_thread.run_sync(self.load_tokenizer, spec)
        with ExitStack() as stack:
            stream = sys.stderr
            if spec.log_file is not None:
                spec.log_file.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(spec.log_file.open("a", encoding="utf-8"))
            stack.enter_context(log_to(stream))
            model = await to_thread.run_sync(load_model, spec)
            engine = TransformersEngine(Computation(model, tokenizer), spec)
            try:
                yield engine
            finally:
                with CancelScope(shield=True):
                    await to_thread.run_sync(engine.close)


factory = TransformersFactory()


class TransformersEngine:
    """A started engine: requests wait in a queue, one thread computes them in batches."""

    def __init__(self, computation: Computation, spec: EngineSpec) -> None:
        limits = limits_of(spec)
        self.tokenizer = computation.tokenizer
        self.capacity = Capacity(
            kv_tokens=UNLIMITED_KV_TOKENS,
            block_tokens=1,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=max_model_len(spec),
        )
        self._batcher = Batcher(
            computation.answer, max_jobs=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens
        )

    async def choose(self, prompt_ids: list[int], labels: LabelIds, *, priority: int, replica: int) -> ChooseAnswer:
        return await self._ask(ChooseRequest(prompt_ids, labels), "choose", len(prompt_ids), priority, replica)

    async def write(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        schema: str | None,
        priority: int,
        replica: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> WriteAnswer:
        request = WriteRequest(prompt_ids, max_tokens, stop, schema, temperature, seed)
        kind = ("write", schema is None)  # free and structured texts are generated apart
        return await self._ask(request, kind, len(prompt_ids) + max_tokens, priority, replica)

    def close(self) -> None:
        self._batcher.close()

    async def _ask(self, request: Any, kind: Any, num_tokens: int, priority: int, replica: int) -> Any:
        assert replica == 0, "there is one replica"
        if not request.prompt_ids or num_tokens > self.capacity.max_model_len:
            raise RequestError(
                f"the request has {num_tokens} tokens, the model takes 1 to {self.capacity.max_model_len}", "too_long"
            )
        return await self._batcher.ask(request, kind=kind, num_tokens=num_tokens, priority=priority)


class Computation:
    """A loaded model and what it computes for a batch; runs in one thread."""

    def __init__(self, model: Any, tokenizer: FastTokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.decoder_start = _decoder_start(model)
        self.end_ids = end_ids(model, tokenizer)
        self._accepts = frozenset(inspect.signature(model.forward).parameters)
        self._pad_id = tokenizer.pretrained.pad_token_id or 0
        # Sampling settings that a model folder suggests are for chats: an answer here is the greedy one.
        model.generation_config = type(model.generation_config)()
        self.compile_schema = lru_cache(maxsize=16)(self._compile_schema)

    def answer(self, batch: Sequence[Job]) -> Sequence[ChooseAnswer | WriteAnswer]:
        """Answers to jobs of one kind, in their order."""
        import torch

        with torch.inference_mode():
            if isinstance(batch[0].request, ChooseRequest):
                return self.choose([job.request for job in batch])
            return self.write([job.request for job in batch], lambda row: batch[row].is_abandoned)

    def choose(self, requests: Sequence[ChooseRequest]) -> list[ChooseAnswer]:
        """One forward pass: log-probabilities of the first answer token, in float32 over the full vocabulary."""
        import torch

        logits = self._next_logits([request.prompt_ids for request in requests])
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        return [
            ChooseAnswer(
                tuple(log_sum_exp(logprobs[row, list(ids)].tolist()) for ids in request.labels),
                Usage(len(request.prompt_ids), 0, 1),
            )
            for row, request in enumerate(requests)
        ]

    def write(self, requests: Sequence[WriteRequest], is_abandoned: Callable[[int], bool]) -> list[WriteAnswer]:
        """Texts, all of them free or all of them structured; each is greedy or sampled as its request says."""
        from transformers import GenerationConfig

        inputs = self._inputs([request.prompt_ids for request in requests])
        first = len(self.decoder_start) or inputs["input_ids"].shape[1]
        watch = TextWatch(requests, self.tokenizer, self.end_ids, first, is_abandoned)
        processors = []
        if requests[0].schema is not None:
            compiled = [self.compile_schema(request.schema) for request in requests]
            processors.append(structured(compiled, watch.is_ended))
        if any(request.temperature > 0 for request in requests):
            processors.append(sampled(requests))
        self.model.generate(
            **inputs,
            generation_config=GenerationConfig(
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=False,
                num_beams=1,
                pad_token_id=self._pad_id,
                eos_token_id=sorted(self.end_ids) or None,
                decoder_start_token_id=self.decoder_start[0] if self.decoder_start else None,
            ),
            stopping_criteria=[watch],
            logits_processor=processors,
        )
        return [self._written(request, watch, row) for row, request in enumerate(requests)]

    def _written(self, request: WriteRequest, watch: TextWatch, row: int) -> WriteAnswer:
        ids = watch.ids[row]
        usage = Usage(len(request.prompt_ids), 0, len(ids))
        text, kept = cut_text(self.tokenizer, ids[:-1] if ids[-1:] and ids[-1] in self.end_ids else ids, request.stop)
        return WriteAnswer(text, tuple(kept), watch.finishes[row] or "length", usage)

    def _next_logits(self, prompts: Sequence[list[int]]) -> torch.Tensor:
        """Logits of the token that comes next, (num_prompts, vocabulary)."""
        inputs = self._inputs(prompts)
        if not self.decoder_start and "position_ids" in self._accepts:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = 1
        logits: torch.Tensor = self.model(**inputs, use_cache=False).logits
        return logits[:, -1]

    def _inputs(self, prompts: Sequence[list[int]]) -> dict[str, Any]:
        """Padded ids and their mask: in front for a decoder, which goes on at the end; behind for an encoder."""
        import torch

        if isinstance(self.tokenizer, EncoderDecoderTokenizer):
            prompts = [[*ids, *self.tokenizer.end_ids] for ids in prompts]
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._pad_id)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            place = slice(len(prompt)) if self.decoder_start else slice(width - len(prompt), width)
            ids[row, place] = torch.tensor(prompt)
            mask[row, place] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self.decoder_start:
            inputs["decoder_input_ids"] = torch.tensor([self.decoder_start] * len(prompts))
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def _compile_schema(self, schema: str) -> Any:
        """Raises: RequestError where xgrammar is not installed, or cannot follow the schema."""
        try:
            import xgrammar
        except ImportError as error:
            raise RequestError("structured output needs xgrammar; pip install xgrammar, or use vLLM") from error
        info = xgrammar.TokenizerInfo.from_huggingface(
            self.tokenizer.pretrained,
            vocab_size=self.model.get_output_embeddings().weight.shape[0],
            stop_token_ids=sorted(self.end_ids),
        )
        try:
            # Free white space lets a small model write blank lines for ever.
            return xgrammar.GrammarCompiler(info).compile_json_schema(schema, any_whitespace=False)
        except RuntimeError as error:
            raise RequestError(f"xgrammar cannot follow the schema: {error}") from error


class TextWatch:
    """Looks at every text after each token and ends those that are done; transformers calls it.

    `ids` are each text's own up to its end, the token that ended it included; `finishes` say why it ended.
    """

    def __init__(
        self,
        requests: Sequence[WriteRequest],
        tokenizer: FastTokenizer,
        end_ids: frozenset[int],
        first: int,
        is_abandoned: Callable[[int], bool],
    ) -> None:
        self.ids: list[list[int]] = [[] for _ in requests]
        self.finishes: list[Finish | None] = [None] * len(requests)
        self._requests = requests
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._first = first
        self._is_abandoned = is_abandoned

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """For each row of `input_ids` (num_rows, length) whether its text has ended."""
        import torch

        for row, ids in enumerate(input_ids[:, self._first :].tolist()):
            if self.finishes[row] is None:
                self.ids[row] = ids
                self.finishes[row] = self._finish(row, ids)
        ended = [finish is not None for finish in self.finishes]
        return torch.tensor(ended, device=input_ids.device)

    def is_ended(self, row: int) -> bool:
        return self.finishes[row] is not None

    def _finish(self, row: int, ids: list[int]) -> Finish | None:
        request = self._requests[row]
        if ids[-1] in self._end_ids or self._has_stop(request.stop, ids):
            return "stop"
        if len(ids) >= request.max_tokens or self._is_abandoned(row):
            return "length"
        return "repetition" if is_looping(ids) else None

    def _has_stop(self, stop: tuple[str, ...], ids: list[int]) -> bool:
        if not stop:
            return False
        # A token may be one byte of a character.
        longest = max(len(each.encode()) for each in stop) + LONGEST_STOP_MARGIN
        text = self._tokenizer.decode(ids[-longest:])
        return any(each in text for each in stop)


def structured(compiled: Sequence[Any], is_ended: Callable[[int], bool]) -> Callable[..., torch.Tensor]:
    """A logits processor that lets each text follow its own grammar.

    xgrammar's own (contrib.hf) fails an assertion where a text of the batch ends for another reason than its grammar.
    """
    import xgrammar

    matchers = [xgrammar.GrammarMatcher(each) for each in compiled]
    bitmask = xgrammar.allocate_token_bitmask(len(matchers), compiled[0].tokenizer_info.vocab_size)
    has_begun = False

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal has_begun
        for row, matcher in enumerate(matchers):
            bitmask[row] = -1  # all bits set: everything is allowed
            if is_ended(row) or matcher.is_terminated():
                continue
            if has_begun and not matcher.accept_token(int(input_ids[row, -1])):
                raise RequestError("the model left the grammar")
            if not matcher.is_terminated():
                matcher.fill_next_token_bitmask(bitmask, row)
        has_begun = True
        xgrammar.apply_token_bitmask_inplace(scores, bitmask.to(scores.device))
        return scores

    return process


def sampled(requests: Sequence[WriteRequest]) -> Callable[..., torch.Tensor]:
    """A logits processor behind which the likeliest token is a sample, for each request above temperature 0.

    Gumbel's noise on the scores does that. It comes from a generator of the request's own, on the CPU, so that a text
    depends neither on its batch nor on the device.
    """
    import torch

    generators = [torch.Generator().manual_seed(request.seed) for request in requests]

    def process(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        for row, (request, generator) in enumerate(zip(requests, generators, strict=True)):
            if request.temperature > 0:
                waits = torch.empty(scores.shape[-1]).exponential_(generator=generator).clamp_(min=TINY)
                scores[row] = scores[row] / request.temperature - waits.log().to(scores.device)
        return scores

    return process


def load_model(spec: EngineSpec) -> Any:
    """The model on its device, ready to compute.

    Raises: RunFailedError where it cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    facts, device = read_model(spec.model), device_name()
    kind = AutoModelForSeq2SeqLM if facts.is_encoder_decoder else AutoModelForCausalLM
    dtype = resolve_dtype(spec, facts, is_cpu=device == "cpu")
    try:
        with _without_bars():
            model = kind.from_pretrained(
                str(spec.model),
                dtype=getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        return model.to(device).eval()
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, AttributeError) as error:
        where = f"; its log is {spec.log_file}" if spec.log_file else ""
        raise RunFailedError(f"the engine did not start ({type(error).__name__}: {error}){where}") from error


def device_name() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def max_model_len(spec: EngineSpec) -> int:
    """Tokens of prompt and answer together; an encoder's and its decoder's together too, to be safe."""
    facts = read_model(spec.model)
    if spec.max_model_len:
        return min(spec.max_model_len, facts.max_tokens or spec.max_model_len)
    return min(facts.max_tokens or UNBOUND_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)


def limits_of(spec: EngineSpec) -> Limits:
    """Raises: UsageError for an `--engine-arg` that is not ours or is no number above 0."""
    for name, value in spec.extra.items():
        if name not in Limits.__struct_fields__:
            raise UsageError(
                f"--engine-arg {name} is unknown to the transformers engine{nearest(name, Limits.__struct_fields__)}"
            )
        if not value.isdecimal() or int(value) == 0:
            raise UsageError(f"--engine-arg {name} must be a number above 0, got {value!r}")
    limits = Limits(**{name: int(value) for name, value in spec.extra.items()})
    return msgspec.structs.replace(limits, max_num_seqs=1) if spec.deterministic else limits


def end_ids(model: Any, tokenizer: FastTokenizer) -> frozenset[int]:
    """Ids that end a text: the model's and the tokenizer's, as vLLM takes them."""
    named = (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.pretrained.eos_token_id)
    return frozenset(each for name in named if name is not None for each in ([name] if isinstance(name, int) else name))


def _decoder_start(model: Any) -> list[int]:
    """What a decoder's text begins with, where an encoder reads the prompt; empty for a decoder-only model."""
    if not model.config.is_encoder_decoder:
        return []
    generation = model.generation_config
    for first in (
        generation.decoder_start_token_id,
        getattr(model.config, "decoder_start_token_id", None),
        generation.bos_token_id,
    ):
        if first is not None:
            return [first] if generation.forced_bos_token_id is None else [first, generation.forced_bos_token_id]
    raise RunFailedError("the engine did not start: the model's configuration has no decoder_start_token_id")


@contextmanager
def _without_bars() -> Iterator[None]:
    """Without transformers' progress bars, which do not go through its log."""
    from transformers.utils import logging

    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()
