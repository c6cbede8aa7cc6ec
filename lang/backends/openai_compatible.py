"""Any OpenAI-compatible endpoint as a backend: programs run there too, as far as such an API goes.

A branch is kept here, as messages or as text, and sent whole with every generation: text outside of roles goes to
completions, messages go to chat. What the API has no word for (rollback of its cache, masks of our own, choice scores
in a chat) is refused with the reason, never dropped.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from ramet.constrained.spec import JsonObject, JsonSchema, Spec
from ramet.lang.backends.base import ConnectOnce
from ramet.lang.backends.http import HttpClient, Refused
from ramet.lang.backends.remote import ask, error_of
from ramet.lang.calls import parse_calls, read_spec, without_calls, write_call
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import BadRequest, EngineFailed, NotBuilt, NotFound, TimedOut
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    EngineStatistics,
    Event,
    Finished,
    FinishReason,
    GapKind,
    GenerateSpec,
    Mark,
    Message,
    MessagesPiece,
    ModelCard,
    Piece,
    ProgramSpec,
    Sampling,
    Selection,
    SelectMethod,
    TextPiece,
    TokenLogprob,
    TokensPiece,
    Usage,
)

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",  # the calls are in the text, as a program expects them
    "function_call": "stop",
}


@dataclass(frozen=True)
class _Branch:
    """What was said: frozen, so that a fork is a reference."""

    messages: tuple[Message, ...] = ()
    open_role: str | None = None
    """A message is open: `text` is its content so far."""
    text: str = ""
    """Of the open message; or, where there are no messages, of the branch."""
    tools: tuple[Mapping[str, object], ...] = ()
    usage: Usage = field(default_factory=Usage)

    @property
    def is_chat(self) -> bool:
        return bool(self.messages) or self.open_role is not None

    def closed(self) -> "_Branch":
        if self.open_role is None:
            return self
        message = Message(role=self.open_role, content=self.text)
        return replace(self, messages=(*self.messages, message), open_role=None, text="")


class OpenAIClient:
    """An EngineClient over chat completions and completions."""

    def __init__(self, http: HttpClient, card: ModelCard, settings: "Settings") -> None:
        self._http, self._card, self._settings = http, card, settings
        self._branches: dict[BranchHandle, _Branch] = {}
        self._marks: dict[tuple[BranchHandle, int], _Branch] = {}
        self._serial = 0

    @property
    def card(self) -> ModelCard:
        return self._card

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _get(self, branch: BranchHandle) -> _Branch:
        if branch not in self._branches:
            raise NotFound(f"there is no branch {branch.branch_id} in program {branch.program_id}")
        return self._branches[branch]

    async def open(self, program: ProgramSpec) -> BranchHandle:
        handle = BranchHandle(program.program_id or f"program-{self._next()}", self._next())
        self._branches[handle] = _Branch()
        return handle

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        now = self._get(branch)
        for piece in pieces:
            match piece:
                case TextPiece():
                    now = _with_text(now, piece.text)
                case MessagesPiece():
                    now = _with_messages(now, piece)
                case TokensPiece():
                    raise NotBuilt("token ids on an OpenAI-compatible endpoint", hint="Say the text instead.")
        self._branches[branch] = now

    async def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        now = self._get(branch)
        path, body = self._request(now, spec)
        parts: list[str] = []
        async with asyncio.timeout(spec.timeout_s) as limit:
            try:
                async with aclosing(self._events(path, body, now.is_chat)) as events:
                    async for event in events:
                        if isinstance(event, Delta):
                            parts.append(event.text)
                        yield _judged(event, spec, parts) if isinstance(event, Finished) else event
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TimedOut(f"no answer within {spec.timeout_s} s") from None
            finally:
                self._branches[branch] = replace(now, text=now.text + "".join(parts))

    def _request(self, now: _Branch, spec: GenerateSpec) -> tuple[str, dict[str, object]]:
        body: dict[str, object] = {"model": self._card.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= _sampling(spec, extensions=self._settings.extensions)
        if now.is_chat:
            body |= self._chat(now, spec)
        else:
            body |= {"prompt": now.text} | _completion_logprobs(spec)
            if spec.grammar is not None:
                raise NotBuilt("a constraint on a text completion", hint="Use roles: chat has response_format.")
        return ("/chat/completions" if now.is_chat else "/completions"), body | dict(self._settings.extra_body)

    def _chat(self, now: _Branch, spec: GenerateSpec) -> dict[str, object]:
        messages = _wire_all(now.messages)
        body: dict[str, object] = {"messages": messages}
        if now.open_role not in (None, "assistant"):
            raise NotBuilt(
                f"generating inside a {now.open_role} message over a chat API", hint="Use a text completion."
            )
        if now.text:
            if not self._settings.extensions:
                raise NotBuilt(
                    "continuing a begun assistant message over a chat API",
                    hint="Put the words into the user's message, or OpenAI(..., extensions=True) where the server can.",
                )
            messages.append({"role": "assistant", "content": now.text})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if spec.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": spec.logprobs}
        if spec.prompt_logprobs is not None:
            raise NotBuilt("logprobs of the prompt over a chat API")
        return body | _constraint(spec.grammar, now.tools)

    async def _events(self, path: str, body: Mapping[str, object], is_chat: bool) -> AsyncGenerator[Event, None]:
        reading = _Reading(is_chat)
        async with aclosing(self._http.events(path, msgspec.json.encode(body))) as stream:  # type: ignore[type-var]
            try:
                async for data in stream:  # to its very end, so that the connection can be used again
                    for event in reading.read(msgspec.json.decode(data)) if data != b"[DONE]" else ():
                        yield event
            except Refused as refused:
                raise error_of(refused.response) from None
            except (ConnectionError, asyncio.IncompleteReadError, msgspec.MsgspecError) as broken:
                raise EngineFailed(f"the endpoint's stream broke off: {broken}") from None
        for event in reading.end():
            yield event

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        """By echoed logprobs of prompt + choice, one request a choice: only the mean of its tokens can be had that
        way."""
        now = self._get(branch)
        if now.is_chat:
            raise NotBuilt(
                "select over a chat API, which can't score given text",
                hint='gen(name, dtype=Literal["a", "b"]) lets the model pick one.',
            )
        if method != "token_length_normalized" or temperature:
            raise NotBuilt(
                f"select by {method!r} at temperature {temperature} over completions",
                hint='Their echo gives no end of a choice: use choices_method="token_length_normalized".',
            )
        scored = await asyncio.gather(*(self._echo(now.text, choice) for choice in choices))
        logprobs = [entries for entries, _ in scored]
        scores = [sum(entry.logprob or 0.0 for entry in entries) / max(len(entries), 1) for entries in logprobs]
        index = max(range(len(scores)), key=scores.__getitem__)
        if append:
            self._branches[branch] = replace(now, text=now.text + choices[index])
        usage = Usage(prompt_tokens=sum(tokens for _, tokens in scored))
        return Selection(index=index, probabilities=_softmax(scores), scores=scores, logprobs=logprobs, usage=usage)

    async def _echo(self, prompt: str, choice: str) -> tuple[list[TokenLogprob], int]:
        body = {"model": self._card.name, "prompt": prompt + choice, "max_tokens": 1, "echo": True, "logprobs": 1}
        body |= {"temperature": 0, **self._settings.extra_body}
        answer = await ask(self._http, "POST", "/completions", body, dict[str, Any])
        logprobs = answer["choices"][0].get("logprobs")
        if logprobs is None:
            raise NotBuilt("select on an endpoint that echoes no logprobs")
        inside = [
            value
            for value, offset in zip(logprobs["token_logprobs"], logprobs["text_offset"], strict=True)
            if len(prompt) <= offset < len(prompt + choice)
        ]
        return [TokenLogprob(-1, value) for value in inside], int(answer.get("usage", {}).get("prompt_tokens", 0))

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        now = replace(self._get(branch), usage=Usage())
        handles = [BranchHandle(branch.program_id, self._next()) for _ in range(n)]
        self._branches.update(dict.fromkeys(handles, now))
        return handles

    async def mark(self, branch: BranchHandle) -> Mark:
        mark = Mark(0, self._next())
        self._marks[branch, mark.serial] = self._get(branch)
        return mark

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        self._get(branch)
        self._branches[branch] = self._marks[branch, mark.serial]

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        """A hint to an engine's memory; an endpoint has nothing to do with it, and no result depends on it."""
        self._get(branch)

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        gone = [h for h in self._branches if h == branch or (program and h.program_id == branch.program_id)]
        for handle in gone:
            del self._branches[handle]
        for key in [key for key in self._marks if key[0] in gone]:
            del self._marks[key]
        return Usage()

    async def tokens(self, branch: BranchHandle) -> list[int]:
        raise NotBuilt("token ids on an OpenAI-compatible endpoint")

    async def text(self, branch: BranchHandle) -> str:
        """What was said, as `role: content` lines: how the endpoint's model sees it, nobody is told."""
        now = self._get(branch)
        lines = [f"{message.role}: {message.content}\n" for message in now.messages]
        return "".join(lines) + (f"{now.open_role}: {now.text}" if now.open_role is not None else now.text)

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        raise NotBuilt("tokenize on an OpenAI-compatible endpoint")

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        raise NotBuilt("detokenize on an OpenAI-compatible endpoint")

    async def statistics(self) -> EngineStatistics:
        raise NotBuilt("statistics of an OpenAI-compatible endpoint")

    async def flush_cache(self) -> int:
        raise NotBuilt("flush_cache on an OpenAI-compatible endpoint")


def _with_text(now: _Branch, text: str) -> _Branch:
    if now.messages and now.open_role is None:
        raise NotBuilt("text outside of roles beside messages, over a chat API", hint="Put it into a message.")
    return replace(now, text=now.text + text)


def _with_messages(now: _Branch, piece: MessagesPiece) -> _Branch:
    if now.text and now.open_role is None:
        raise NotBuilt("messages after text outside of roles, over a chat API", hint="Put the text into a message.")
    now = now.closed()
    messages = list(piece.messages)
    tools = tuple(piece.tools) if piece.tools is not None else now.tools
    if piece.chat_template is not None or piece.template_arguments:
        raise NotBuilt("a chat template of your own over a chat API")
    if piece.continue_final_message and messages:
        last = messages.pop()
        opened = replace(now, open_role=last.role, text=str(last.content or ""))
        return replace(opened, messages=(*now.messages, *messages), tools=tools)
    role = "assistant" if piece.add_generation_prompt else None
    return replace(now, messages=(*now.messages, *messages), open_role=role, tools=tools)


def _wire_call(identity: str, name: str, arguments: str) -> dict[str, object]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _name_of(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _wire_all(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Calls are numbered through the conversation, as `call_tools` numbers them."""
    wired: list[dict[str, object]] = []
    num_calls = 0
    for message in messages:
        wired.append(_wire(message, num_calls))
        calls = wired[-1].get("tool_calls")
        num_calls += len(calls) if isinstance(calls, list) else 0
    return wired


def _wire(message: Message, first_call: int) -> dict[str, object]:
    """A message; the calls that a program keeps as text go out as what they are."""
    wire: dict[str, object] = msgspec.to_builtins(message)
    if message.role == "assistant" and isinstance(message.content, str):
        calls = [
            _wire_call(call.id, call.name, call.arguments) for call in parse_calls(message.content, first=first_call)
        ]
        if calls:
            wire |= {"content": without_calls(message.content) or None, "tool_calls": calls}
    if message.role == "tool":
        wire.pop("name", None)
    return wire


_PLAIN_FIELDS = {"temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": None}
_EXTENSION_FIELDS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_EXTENSION_SPECS = {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": (), "skip_special_tokens": True}


def _sampling(spec: GenerateSpec, *, extensions: bool) -> dict[str, object]:
    """The fields that OpenAI has; those of vLLM and SGLang where the user says that the server knows them."""
    sampling = spec.sampling
    body: dict[str, object] = _unlike(sampling, _PLAIN_FIELDS)
    if spec.max_tokens is not None:
        body["max_tokens"] = spec.max_tokens
    if spec.stop:
        body["stop"] = list(spec.stop)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    more = _unlike(sampling, _EXTENSION_FIELDS) | _unlike(spec, _EXTENSION_SPECS)
    if spec.include_stop:
        more["include_stop_str_in_output"] = True
    if sampling.allowed_token_ids:
        more["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if more and not extensions:
        raise NotBuilt(
            f"{', '.join(sorted(more))} on a plain OpenAI API",
            hint="OpenAI(..., extensions=True) sends it to a server that knows it (vLLM, SGLang, Ramet).",
        )
    return body | more


def _unlike(struct: Sampling | GenerateSpec, defaults: Mapping[str, object]) -> dict[str, object]:
    return {name: getattr(struct, name) for name, value in defaults.items() if getattr(struct, name) != value}


def _completion_logprobs(spec: GenerateSpec) -> dict[str, object]:
    if spec.prompt_logprobs is not None:
        raise NotBuilt("logprobs of the prompt over an OpenAI API")
    return {} if spec.logprobs is None else {"logprobs": spec.logprobs}


def _judged(finished: Finished, spec: GenerateSpec, parts: Sequence[str]) -> Finished:
    """Where a schema may be held in part only, what the text fails of it: the endpoint itself says nothing."""
    if not isinstance(spec.grammar, JsonSchema) or spec.grammar.unsupported != "declare":
        return finished
    from ramet.constrained.judge import judge_text  # late: most programs never come here

    found = [msgspec.to_builtins(violation) for violation in judge_text(spec.grammar, "".join(parts))]
    return msgspec.structs.replace(finished, violations=found)


def _constraint(grammar: Spec | None, tools: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """`response_format`, or the API's own tool calls; other grammars have no word in it."""
    match grammar:
        case None:
            return {"tools": list(tools), "tool_choice": "none"} if tools else {}
        case JsonSchema():
            if grammar.whitespace != "bounded":
                raise NotBuilt(f"whitespace={grammar.whitespace!r} over an OpenAI API", hint="It writes as it likes.")
            strict = grammar.unsupported != "declare"
            schema = {"name": "output", "strict": strict, "schema": msgspec.json.decode(grammar.schema)}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case JsonObject():
            return {"response_format": {"type": "json_object"}}
    if (calls := read_spec(grammar)) is not None:
        named = {"type": "function", "function": {"name": calls.choice}}
        choice = calls.choice if calls.choice in ("auto", "required") else named
        return {"tools": [tool for tool in tools if _name_of(tool) in calls.names], "tool_choice": choice}
    raise NotBuilt(
        f"a {type(grammar).__name__.lower()} constraint over an OpenAI API",
        hint="json_schema, or a dtype that is an object, is what response_format can say.",
    )


class _Reading:
    """Chunks of a stream -> events."""

    _CALL_FIELDS: ClassVar = ("name", "arguments")

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._reason: FinishReason | None = None
        self._usage = Usage()
        self._calls: dict[int, dict[str, str]] = {}
        self._wrote = False

    def read(self, chunk: Mapping[str, Any]) -> list[Event]:
        if "error" in chunk:
            raise EngineFailed(f"the endpoint failed: {chunk['error']}")
        if usage := chunk.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self._usage = Usage(
                prompt_tokens=usage.get("prompt_tokens") or 0,
                completion_tokens=usage.get("completion_tokens") or 0,
                cached_tokens=details.get("cached_tokens") or 0,
            )
        events: list[Event] = []
        for choice in chunk.get("choices") or ():
            if choice.get("finish_reason"):
                self._reason = _REASONS.get(choice["finish_reason"], "stop")
            events += self._delta(choice)
        return events

    def _delta(self, choice: Mapping[str, Any]) -> list[Event]:
        delta = choice.get("delta") or {}
        text = (delta.get("content") if self._is_chat else choice.get("text")) or ""
        for call in delta.get("tool_calls") or ():
            into = self._calls.setdefault(call.get("index", 0), {"name": "", "arguments": ""})
            for name in self._CALL_FIELDS:
                into[name] += (call.get("function") or {}).get(name) or ""
        logprobs = _logprobs(choice.get("logprobs"))
        self._wrote = self._wrote or bool(text)
        return [Delta(text=text, tokens=[], logprobs=logprobs)] if text or logprobs else []

    def end(self) -> list[Event]:
        """The calls as text, in the form that programs read; then the last event."""
        if self._reason is None:
            raise EngineFailed("the endpoint's stream ended without a finish_reason")
        texts = [write_call(call["name"], call["arguments"]) for _, call in sorted(self._calls.items())]
        text = "\n".join([*([""] if texts and self._wrote else []), *texts])
        last = Finished(reason=self._reason, usage=self._usage)
        return [Delta(text=text, tokens=[]), last] if text else [last]


def _logprobs(found: Mapping[str, Any] | None) -> list[TokenLogprob] | None:
    """No token ids in this API: -1 stands for each."""
    if found is None:
        return None
    if "content" in found:
        entries = found["content"] or ()
        return [
            TokenLogprob(-1, entry["logprob"], [(-1, top["logprob"]) for top in entry["top_logprobs"]])
            for entry in entries
        ]
    tops = found.get("top_logprobs") or [{}] * len(found.get("token_logprobs") or ())
    pairs = zip(found.get("token_logprobs") or (), tops, strict=True)
    return [TokenLogprob(-1, value, [(-1, logprob) for logprob in (top or {}).values()]) for value, top in pairs]


def _softmax(scores: Sequence[float]) -> list[float]:
    from math import exp

    weights = [exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to speak to the endpoint."""

    extensions: bool = False
    extra_body: Mapping[str, object] = field(default_factory=dict)


class OpenAI(ConnectOnce):
    """An OpenAI-compatible endpoint: `OpenAI("http://localhost:8000/v1", "my-model")`.

    api_key: None takes OPENAI_API_KEY. extensions: the server knows top_k, min_p, repetition_penalty, min_tokens,
    ignore_eos, stop_token_ids and continue_final_message (vLLM, SGLang and Ramet do). extra_body: further fields of
    every request.
    """

    def __init__(
        self,
        base_url: str = "https://api.openai.com/v1",
        model: str = "",
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        verify: bool | str = True,
        context_length: int = 1 << 20,
        extensions: bool = False,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        if not model:
            raise BadRequest(expected="the name of a model", got=model, at="OpenAI(model=...)")
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        authorization = {"authorization": f"Bearer {key}"} if key else {}
        self._http = HttpClient(base_url, headers={**authorization, **(headers or {})}, verify=verify)
        self._model, self._context_length = model, context_length
        self._settings = Settings(extensions=extensions, extra_body=dict(extra_body or {}))

    async def _connect(self) -> EngineClient:
        card = ModelCard(
            name=self._model,
            model_type="openai",
            context_length=self._context_length,
            vocabulary_size=0,
            end_token_ids=(),
        )
        return OpenAIClient(self._http, card, self._settings)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"OpenAI({self._http.base_url!r}, {self._model!r})"
