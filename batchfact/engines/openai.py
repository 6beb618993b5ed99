"""Any OpenAI-compatible server behind the `Engine` protocol: a teacher over an API, or a shared vLLM server.

Ids of `RemoteTokenizer` flow in and go out as chat messages; log-probabilities and text flow back. The `openai` client
does retries, rate limits and timeouts. The key is read from the environment where the client is made, and is in no
file, log or message of ours.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from batchfact.engines.answers import log_sum_exp
from batchfact.engines.base import Capacity, ChooseAnswer, EngineSpec, LabelIds, RequestError, Server, WriteAnswer
from batchfact.engines.remote_tokenizer import CHARS_A_TOKEN, Conversation, RemoteTokenizer
from batchfact.errors import RunFailedError, UsageError, nearest
from batchfact.records import Finish, Usage

UNLIMITED_TOKENS = 1 << 40
PARSED_TOKENS = 8
"""Tokens asked for where a label is read from text: the word may stand behind a line break or a marker such as `**`."""
MAX_STOPS = 4
"""Servers take no more; the text is cut here all the same."""
CONTINUING = ("vllm", "sglang")
"""What servers say of themselves that go on in an assistant's turn that is begun."""
FINISHES: Mapping[str, Finish] = {"length": "length"}


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `--engine-arg` may set.

    `endpoint` completions sends plain text, for a model without a chat template. `continue_final_message` says whether
    the server goes on in an assistant's turn that is begun (the cue, a reasoning); where it does not, that text closes
    the user's turn. `max_num_seqs` bounds the requests in flight.
    """

    endpoint: Literal["chat", "completions"] = "chat"
    continue_final_message: Literal["auto", "true", "false"] = "auto"
    top_logprobs: int = 20
    max_num_seqs: int = 32
    max_retries: int = 6
    timeout_s: float = 120.0


class Reply(Struct, frozen=True, kw_only=True):
    """What a server said: `top` are the likeliest first tokens with their log-probabilities, None if it gives none."""

    text: str
    finish: Finish
    top: tuple[tuple[str, float], ...] | None
    usage: Usage


class OpenAIFactory:
    """The object behind the entry point `openai`."""

    def describe(self, spec: EngineSpec) -> dict[str, str]:
        """Raises: UsageError for a missing package, server or key, or a setting that is the server's."""
        if find_spec("openai") is None:
            raise UsageError("--engine openai needs the client: pip install 'batchfact[openai]'")
        server = _server(spec)
        if spec.dtype or spec.quantization:
            raise UsageError("--dtype and --quantization are the server's to choose with --engine openai")
        if spec.deterministic:
            raise UsageError("--deterministic cannot be promised of a server, which may compute others' requests too")
        options = options_of(spec)
        _key(server)
        url = urlsplit(server.base_url)
        context = {"max_model_len": str(spec.max_model_len)} if spec.max_model_len else {}
        return {
            "engine": "openai",
            "server": url.netloc + url.path.rstrip("/"),
            "endpoint": options.endpoint,
            "continue_final_message": options.continue_final_message,
            "top_logprobs": str(options.top_logprobs),
            **context,
        }

    def load_tokenizer(self, spec: EngineSpec) -> RemoteTokenizer:
        return RemoteTokenizer(is_chat=options_of(spec).endpoint == "chat")

    @asynccontextmanager
    async def open(self, spec: EngineSpec) -> AsyncIterator[OpenAIEngine]:
        """Ask the server for its models, so that a wrong address, key or name ends the run before the first row.

        Raises: UsageError for a key or a model that the server refuses, RunFailedError where it cannot be reached.
        """
        from openai import AsyncOpenAI

        server, options = _server(spec), options_of(spec)
        async with AsyncOpenAI(
            base_url=server.base_url,
            # Without a key of its own the client would send OPENAI_API_KEY, to whatever server this is.
            api_key=_key(server) or "none",
            max_retries=options.max_retries,
            timeout=options.timeout_s,
        ) as client:
            yield OpenAIEngine(client, spec, await _owner(client, server))


factory = OpenAIFactory()


class OpenAIEngine:
    """An open connection to a server; `owner` is who it says serves the model, None if it does not say."""

    def __init__(self, client: Any, spec: EngineSpec, owner: str | None) -> None:
        options = options_of(spec)
        self._client = client
        self._server = _server(spec)
        self._options = options
        self._continues = options.continue_final_message == "true" or (
            options.continue_final_message == "auto" and owner in CONTINUING
        )
        self._gives_logprobs: bool | None = None
        self._limit_name = "max_tokens"
        self._places = anyio.Semaphore(options.max_num_seqs)
        self.tokenizer = RemoteTokenizer(is_chat=options.endpoint == "chat")
        self.capacity = Capacity(
            kv_tokens=UNLIMITED_TOKENS,
            block_tokens=1,
            max_num_seqs=options.max_num_seqs,
            # An id is a character here; without a bound the server says itself what is too long.
            max_model_len=spec.max_model_len * CHARS_A_TOKEN if spec.max_model_len else UNLIMITED_TOKENS,
        )

    async def choose(
        self,
        prompt_ids: list[int],
        labels: LabelIds,
        *,
        priority: int,  # noqa: ARG002  the server has an order of its own, and admission one before it
        replica: int,  # noqa: ARG002  there is one
    ) -> ChooseAnswer:
        conversation = self.tokenizer.read(prompt_ids)
        words = [frozenset(self.tokenizer.decode([each]).strip() for each in ids) for ids in labels]
        used = Usage()
        if self._gives_logprobs is not False:
            reply = await self._first_token(conversation)
            if reply is not None and reply.top is not None:
                self._gives_logprobs = True
                return ChooseAnswer(tuple(log_share(reply.top, spellings) for spellings in words), reply.usage)
            used = reply.usage if reply else used
            self._gives_logprobs = bool(self._gives_logprobs)
        reply = await self._ask(conversation, {self._limit_name: PARSED_TOKENS})
        label = named_label(reply.text, words)
        if label is None:
            raise RequestError(f"the server's answer {reply.text[:60]!r} is none of the labels", "unparsed")
        return ChooseAnswer((), used + reply.usage, label)

    async def write(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        schema: str | None,
        priority: int,  # noqa: ARG002  as for choose
        replica: int,  # noqa: ARG002
        temperature: float = 0.0,
        seed: int = 0,
    ) -> WriteAnswer:
        """Sampled text repeats only as far as the server keeps to the seed."""
        settings: dict[str, Any] = {self._limit_name: max_tokens}
        if temperature > 0:
            settings |= {"temperature": temperature, "seed": seed}
        if stop:
            settings["stop"] = list(stop[:MAX_STOPS])
        if schema is not None:
            form = {"name": "answer", "schema": json.loads(schema), "strict": True}
            settings["extra_body"] = {"response_format": {"type": "json_schema", "json_schema": form}}
        reply = await self._ask(self.tokenizer.read(prompt_ids), settings)
        ends = [at for at in (reply.text.find(each) for each in stop) if at >= 0]
        text = reply.text[: min(ends)] if ends else reply.text
        return WriteAnswer(
            text,
            tuple(self.tokenizer.encode(text, special=False)),
            "stop" if ends else reply.finish,
            reply.usage,
        )

    async def _first_token(self, conversation: Conversation) -> Reply | None:
        """The reply with log-probabilities; None where the server refuses to be asked for them."""
        number = self._options.top_logprobs
        settings = {"logprobs": number} if not self.tokenizer.is_chat else {"logprobs": True, "top_logprobs": number}
        try:
            return await self._ask(conversation, {self._limit_name: 1, **settings})
        except RequestError as error:
            if self._gives_logprobs is None and "logprobs" in str(error):
                return None
            raise

    async def _ask(self, conversation: Conversation, settings: dict[str, Any]) -> Reply:
        """Raises: RequestError where this request failed, RunFailedError where all others would fail too."""
        async with self._places:
            try:
                return await self._ask_once(conversation, settings)
            except RequestError as error:
                # Newer models of OpenAI's know the bound by another name only.
                if "max_completion_tokens" not in str(error) or "max_tokens" not in settings:
                    raise
            self._limit_name = "max_completion_tokens"
            renamed = {self._limit_name if name == "max_tokens" else name: settings[name] for name in settings}
            return await self._ask_once(conversation, renamed)

    async def _ask_once(self, conversation: Conversation, settings: dict[str, Any]) -> Reply:
        import openai

        model = self._server.model
        settings = {"temperature": 0, **settings}
        try:
            with _said_plainly(self._server):
                if not self.tokenizer.is_chat:
                    prompt = conversation.open_turn
                    got = await self._client.completions.create(model=model, prompt=prompt, **settings)
                    return _read(got, len(prompt), read_completion)
                messages, extra = self._messages(conversation)
                body = {**extra, **settings.get("extra_body", {})}
                got = await self._client.chat.completions.create(
                    model=model, messages=messages, **{**settings, "extra_body": body}
                )
                return _read(got, sum(len(message["content"]) for message in messages), read_chat)
        except openai.APIConnectionError as error:
            await self._check_alive()
            raise RequestError(f"the server gave no answer ({error})") from error

    def _messages(self, conversation: Conversation) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Messages and further fields of the request; the begun turn goes where the server can take it."""
        messages = [{"role": each.role, "content": each.content} for each in conversation.messages]
        begun = conversation.open_turn.strip()
        if not begun:
            return messages, {}
        if self._continues:
            messages.append({"role": "assistant", "content": begun})
            return messages, {"add_generation_prompt": False, "continue_final_message": True}
        last = messages[-1]
        return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{begun}"}], {}

    async def _check_alive(self) -> None:
        """Raises: RunFailedError where nothing answers at the address any more."""
        import openai

        try:
            await self._client.with_options(max_retries=0).models.list()
        except openai.APIConnectionError as error:
            raise RunFailedError(
                f"the server at {_host(self._server)} cannot be reached any more ({error}); run the same command again "
                "to go on from the last commit"
            ) from error
        except (openai.OpenAIError, ValueError):
            return


def options_of(spec: EngineSpec) -> Options:
    """Raises: UsageError for an `--engine-arg` that is not ours, or has a value of another type."""
    names = Options.__struct_fields__
    for name in spec.extra:
        if name not in names:
            raise UsageError(f"--engine-arg {name} is unknown to the openai engine{nearest(name, names)}")
    try:
        options = msgspec.convert(dict(spec.extra), Options, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--engine-arg: {error}") from error
    if min(options.top_logprobs, options.max_num_seqs, options.timeout_s) <= 0 or options.max_retries < 0:
        raise UsageError(
            "--engine-arg: top_logprobs, max_num_seqs and timeout_s must be above 0, max_retries at least 0"
        )
    return options


def log_share(top: Sequence[tuple[str, float]], words: frozenset[str]) -> float:
    """Log of the listed tokens' probability that spell one of `words`; minus infinity if none is in the list."""
    found = [logprob for token, logprob in top if bare(token) in words]
    return log_sum_exp(found) if found else -math.inf


def bare(token: str) -> str:
    """A token's word; some servers write the space in front as their tokenizers do."""
    return token.replace("▁", " ").replace("Ġ", " ").strip()


def named_label(text: str, words: Sequence[frozenset[str]]) -> int | None:
    """The place of the label that is the text's first word; None if that is no label."""
    start = next((at for at, character in enumerate(text) if character.isalnum()), len(text))
    said = text[start:].casefold()
    for place, spellings in enumerate(words):
        for word in spellings:
            rest = said.removeprefix(word.casefold())
            if rest != said and not rest[:1].isalnum():
                return place
    return None


def _read(got: Any, num_chars: int, read: Callable[[Any, int], Reply]) -> Reply:
    """The reply, in text that can be written as UTF-8.

    Raises: RequestError also for an answer of another form than the protocol's.
    """
    try:
        reply = read(got, num_chars)
        return msgspec.structs.replace(reply, text=reply.text.encode("utf-8", "replace").decode())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the server's answer has a form that is not known ({error})") from error


def _text_of(content: Any) -> str:
    """A message's text; some servers give it in parts, beside those of reasoning."""
    if isinstance(content, list):
        parts = (each.get("text") if isinstance(each, dict) else getattr(each, "text", None) for each in content)
        return "".join(part for part in parts if part)
    return content or ""


def read_chat(got: Any, num_chars: int) -> Reply:
    """Raises: RequestError for an answer without a choice, and for a refusal."""
    choice = _choice(got)
    message = getattr(choice, "message", None)
    refusal = getattr(message, "refusal", None)
    if refusal:
        raise RequestError(f"the model refused: {refusal}", "refused")
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    top = None
    if content:
        top = tuple((each.token, float(each.logprob)) for each in content[0].top_logprobs or [content[0]])
    elif content == []:
        top = ()
    return Reply(
        text=_text_of(getattr(message, "content", None)), finish=_finish(choice), top=top, usage=_usage(got, num_chars)
    )


def read_completion(got: Any, num_chars: int) -> Reply:
    """Raises: RequestError for an answer without a choice, and for a refusal."""
    choice = _choice(got)
    listed = getattr(getattr(choice, "logprobs", None), "top_logprobs", None)
    top: tuple[tuple[str, float], ...] | None = None
    if listed is not None:
        top = tuple((token, float(logprob)) for token, logprob in (listed[0] or {}).items()) if listed else ()
    return Reply(
        text=getattr(choice, "text", None) or "", finish=_finish(choice), top=top, usage=_usage(got, num_chars)
    )


def _choice(got: Any) -> Any:
    choices = getattr(got, "choices", None)
    if not choices:
        raise RequestError("the server's answer holds no choice")
    if choices[0].finish_reason == "content_filter":
        raise RequestError("the server's content filter held the answer back", "refused")
    return choices[0]


def _finish(choice: Any) -> Finish:
    return FINISHES.get(choice.finish_reason or "", "stop")


def _usage(got: Any, num_chars: int) -> Usage:
    """The server's own count; an estimate from characters where it gives none."""
    usage = getattr(got, "usage", None)
    if usage is None:
        return Usage(num_chars // CHARS_A_TOKEN, 0, 1)
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        prompt=usage.prompt_tokens or 0,
        cached=getattr(details, "cached_tokens", None) or 0,
        output=usage.completion_tokens or 0,
    )


@contextmanager
def _said_plainly(server: Server) -> Iterator[None]:
    """A failed request as RequestError, or RunFailedError where every other one would fail in the same way."""
    import openai

    try:
        yield
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise RunFailedError(f"{_refused_key(server)} any more; correct it and run the same command again") from error
    except openai.APIStatusError as error:
        said = _without_key(error.message, server)
        if error.code == "insufficient_quota":
            raise RunFailedError(f"the account has no quota left ({said}); run the same command again later") from error
        if error.code in ("content_filter", "content_policy_violation"):
            raise RequestError(f"the server's content filter refused the prompt: {said}", "refused") from error
        is_long = error.code == "context_length_exceeded" or "context length" in said
        raise RequestError(f"HTTP {error.status_code}: {said}", "too_long" if is_long else "engine_error") from error
    except (openai.APIResponseValidationError, ValueError) as error:
        raise RequestError("the server's answer is not what an OpenAI-compatible server gives") from error


async def _owner(client: Any, server: Server) -> str | None:
    """Who serves the model, as the server's list says; None where the server has no list."""
    import openai

    try:
        listed = (await client.models.list()).data
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise UsageError(_refused_key(server)) from error
    except openai.APIConnectionError as error:
        raise RunFailedError(f"the server at {_host(server)} cannot be reached ({error})") from error
    except openai.APIStatusError as error:
        if error.status_code in (404, 405, 501):
            return None
        said = _without_key(error.message, server)
        raise RunFailedError(f"the server at {_host(server)} answers HTTP {error.status_code}: {said}") from error
    except (openai.OpenAIError, ValueError, AttributeError):
        return None
    owners = {each.id: getattr(each, "owned_by", None) for each in listed or ()}
    if owners and server.model not in owners:
        names = ", ".join(sorted(owners)[:5])
        raise UsageError(
            f"the server at {_host(server)} has no model {server.model!r}{nearest(server.model, owners)}, only {names}"
        )
    return owners.get(server.model)


def _server(spec: EngineSpec) -> Server:
    """Raises: UsageError where there is none, or its address is no plain HTTP one."""
    if spec.server is None:
        raise UsageError("--engine openai needs --base-url, such as http://localhost:8000/v1")
    url = urlsplit(spec.server.base_url)
    if "@" in spec.server.base_url or url.query:
        raise UsageError("--base-url must hold no user, password or query; name a variable with --api-key-env")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(f"--base-url must be an http or https address, got {spec.server.base_url!r}")
    return spec.server


def _key(server: Server) -> str | None:
    """Raises: UsageError where the variable is not set."""
    if server.api_key_env is None:
        return None
    key = os.environ.get(server.api_key_env)
    if not key:
        raise UsageError(f"--api-key-env {server.api_key_env}: there is no such environment variable")
    return key


def _without_key(text: str, server: Server) -> str:
    key = _key(server)
    return text.replace(key, "...") if key else text


def _refused_key(server: Server) -> str:
    named = f"the key in {server.api_key_env}" if server.api_key_env else "a request without key (see --api-key-env)"
    return f"the server at {_host(server)} does not accept {named}"


def _host(server: Server) -> str:
    return urlsplit(server.base_url).netloc
