"""A served scripted model: the real front over the real engine, with a model that says what a test wants."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import uvicorn
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE

from ramet.constrained.compile import compile
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.local_client import LocalClient
from ramet.runtime.serve.app import create_app
from ramet.runtime.serve.config import ServeConfig
from ramet.runtime.serve.state import ServerState, make_context
from ramet.runtime.telemetry.prometheus import Metrics
from ramet.runtime.tokenizer import Tokenizer, byte_alphabet
from ramet.testing import ByteTokenizer, Replies, scripted_client

HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that knows tools."""


def byte_tokenizer() -> Tokenizer:
    """The real Tokenizer class with the ids of ByteTokenizer."""
    vocabulary = byte_alphabet()
    raw = RawTokenizer(BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    specials = ByteTokenizer().all_token_bytes[256:]
    raw.add_special_tokens([AddedToken(name.decode(), special=True, normalized=False) for name in specials])
    return Tokenizer(raw, bos_id=256, eos_ids=[257])


def make_app(
    client: LocalClient,
    config: ServeConfig | None = None,
    template: str | None = None,
    tool_template: str | None = None,
) -> Any:
    """The application over a client that runs in this process."""
    config = config or ServeConfig()
    state = ServerState(config, Metrics(), lambda: {"status": "ready"})
    source = template or client.card.chat_template
    card = msgspec.structs.replace(client.card, chat_template=source, tool_use_template=tool_template)
    named = {"tool_use": tool_template} if tool_template else None
    compiled = ChatTemplate(source, eos_token="<|im_end|>", named=named)
    context = make_context(client, card, byte_tokenizer(), compiled, config)
    state.set_context(context)
    return create_app(state)


@contextlib.asynccontextmanager
async def served(
    replies: Replies | None = None,
    *,
    config: ServeConfig | None = None,
    template: str | None = None,
    tool_template: str | None = None,
    **engine: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose model replies so."""
    vocabulary = Vocabulary.from_tokenizer(ByteTokenizer())
    client = scripted_client(replies, grammars=lambda spec: compile(spec, vocabulary), **engine).start()
    try:
        app = make_app(client, config, template, tool_template)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as http:
            yield http
    finally:
        await asyncio.to_thread(client.stop)


@contextlib.contextmanager
def listening(replies: Replies, *, template: str | None = None, **engine: Any) -> Iterator[str]:
    """The address of such a server on a free port, for clients that need a socket."""
    vocabulary = Vocabulary.from_tokenizer(ByteTokenizer())
    client = scripted_client(replies, grammars=lambda spec: compile(spec, vocabulary), **engine).start()
    server = uvicorn.Server(uvicorn.Config(make_app(client, template=template), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        client.stop()
