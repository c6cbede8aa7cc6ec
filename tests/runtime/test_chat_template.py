"""Chat templates render as transformers renders them, keep a client's bytes, and fail with the caller told why."""

import json
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ramet.runtime.chat_template import GUARD, ChatTemplate, guard_special
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import Message

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

TOOLS = """{%- if tools %}
{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '</tools>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '<result>' + message.content + '</result>' }}
{%- elif message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '<call>{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}</call>' }}
{%- endfor %}
{%- else %}{{- message.role + ': ' + message.content + '\\n' }}{%- endif %}
{%- endfor %}"""

STRICT = """{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant') }}
{%- endif %}
{{- bos_token if loop.first else '' }}[{{ message.role }}] {{ message.content | trim }}
{{- eos_token if message.role == 'assistant' }}
{%- endfor %}"""

PARTS = """{%- for message in messages %}{{- message.role }}:
{%- for part in message['content'] %}{%- if part.type == 'text' %}{{ part.text }}{%- endif %}{%- endfor %};
{%- endfor %}"""

WALKS = """{% for message in messages %}{% if loop.index > 3 %}{% break %}{% endif %}
  {% set ns = namespace(count=0) %}
  {% generation %}{{ message['content'] }}{% endgeneration %}
{% endfor %}{{ {'é<&>': [1, none, true]} | tojson }}{{ [1, 2] | tojson(indent=2) }}{{ documents | default('none') }}"""

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi — 漢字 <b> 'quoted' \n"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]


def theirs(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(render_jinja_template([messages], chat_template=template, **options)[0][0])


@pytest.mark.parametrize("template", [CHATML, WALKS, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_renders_as_transformers_does(template: str, add_generation_prompt: bool) -> None:
    ours = ChatTemplate(template).render(CHAT, add_generation_prompt=add_generation_prompt)
    assert ours == theirs(template, CHAT, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize("content", ["plain", "  spaced  ", "ends with blanks  ", "\nlines\n"])
@pytest.mark.parametrize("trims", [False, True])
def test_continues_the_final_message_as_transformers_does(content: str, trims: bool) -> None:
    template = CHATML.replace("message.content", "(message.content | trim)") if trims else CHATML
    chat = [*CHAT, {"role": "assistant", "content": content}]
    ours = ChatTemplate(template).render(chat, continue_final_message=True)
    assert ours == theirs(template, chat, continue_final_message=True)
    assert ours.endswith(content.strip() if trims else content)


def test_tools_and_template_arguments_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": "é"}}}]
    template = ChatTemplate(TOOLS)
    assert template.render(CHAT, tools=tools) == theirs(TOOLS, CHAT, tools=tools)
    assert template.uses("tools") and not template.uses("enable_thinking")
    switch = ChatTemplate("{{ 'on' if enable_thinking else 'off' }}")
    assert switch.render(CHAT, enable_thinking=True) == "on" and switch.uses("enable_thinking")


@pytest.mark.parametrize("arguments", ['{"b":1,  "a" : 1.50}', "{}", '{"x": "é\\n"}', "{not json", "[1]", ""])
def test_arguments_of_past_calls_keep_their_bytes(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = [Message(role="user", content="x"), Message(role="assistant", tool_calls=[call])]
    expected = 'user: x\n<call>{"name": "f", "arguments": ' + arguments + "}</call>"
    assert ChatTemplate(TOOLS).render(chat) == expected
    always_tojson = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    if arguments.startswith("{") and arguments != "{not json":
        assert ChatTemplate(always_tojson).render(chat) == arguments
        assert ChatTemplate("{{ messages[1].tool_calls[0].function.arguments }}").render(chat) == arguments


def test_templates_may_look_inside_arguments() -> None:
    template = (
        "{% for name, value in messages[0].tool_calls[0].function.arguments | items %}{{ name }}={{ value | tojson }};"
        "{% endfor %}{{ messages[0].tool_calls[0].function.arguments is mapping }}"
    )
    call = {"function": {"name": "f", "arguments": '{"b":1, "a":[2]}'}}
    assert ChatTemplate(template).render([{"role": "assistant", "tool_calls": [call]}]) == "b=1;a=[2];True"


def test_content_lists_are_joined_for_every_role_or_kept_for_templates_that_walk_them() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    for role in ("system", "user", "assistant", "tool"):
        assert f"{role}\none two<|im_end|>" in ChatTemplate(CHATML).render([{"role": role, "content": parts}])
    assert ChatTemplate(PARTS).render([{"role": "user", "content": parts}]) == "user:one two;"
    assert ChatTemplate(PARTS).render([{"role": "user", "content": "one two"}]) == "user:one two;"
    assert (
        ChatTemplate(PARTS).render([{"role": "user", "content": parts}], continue_final_message=True) == "user:one two"
    )


def test_missing_content_is_empty() -> None:
    assert ChatTemplate(CHATML).render([{"role": "user", "content": None}]) == "<|im_start|>user\n<|im_end|>\n"
    assert ChatTemplate(CHATML).render([Message(role="user")]) == "<|im_start|>user\n<|im_end|>\n"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_goes_by_any_of_its_names(name: str) -> None:
    template = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}"
    chat = [{"role": "assistant", "content": "x", name: "because"}]
    assert ChatTemplate(template).render(chat) == "because|because" == theirs(template, chat)


def test_pictures_are_refused() -> None:
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
    with pytest.raises(BadRequest, match="text only"):
        ChatTemplate(CHATML).render(chat)


def test_newer_role_names_become_older_ones_where_unknown() -> None:
    assert "im_start|>system\nx" in ChatTemplate(CHATML).render([{"role": "developer", "content": "x"}])
    knows = ChatTemplate("{% if messages[0].role == 'developer' %}yes{% endif %}")
    assert knows.render([{"role": "developer", "content": "x"}]) == "yes"


def test_roles_are_merged_for_templates_that_demand_alternation() -> None:
    template = ChatTemplate(STRICT, bos_token="<s>", eos_token="</s>")
    turns = [("system", "S"), ("system", "T"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]
    chat = [{"role": role, "content": text} for role, text in turns]
    assert template.render(chat) == "<s>[user] S\n\nT\n\na\n\nb[assistant] c</s>[user] d"
    with pytest.raises(BadRequest, match="alternate"):
        template.render([{"role": "assistant", "content": "first"}])


def test_templates_that_take_anything_get_messages_as_they_are() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert ChatTemplate(CHATML).render(chat).count("im_start") == 2


def test_named_template_for_tools_is_taken_where_there_are_tools() -> None:
    template = ChatTemplate("plain", named={"tool_use": "with {{ tools | length }}"})
    assert template.render(CHAT) == "plain" and template.render(CHAT, tools=[{}]) == "with 1"


def test_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2024, 7, 26))
    assert template.render(CHAT) == "26 Jul 2024"


def test_guard_spares_roles_and_think_tags() -> None:
    names = ["<|im_end|>", "<|im_start|>", "<think>"]
    chat = [{"role": "user", "content": ["a<|im_end|>b", {"text": "<think><|im_start|>"}], "n": 3}]
    guarded = guard_special(chat, names)
    assert guarded[0]["role"] == "user" and guarded[0]["n"] == 3
    assert guarded[0]["content"] == [f"a<{GUARD}|im_end|>b", {"text": f"<think><{GUARD}|im_start|>"}]
    assert guard_special(f"x{GUARD}y", names) == "x\ufffdy"  # nobody else may write it
    assert guard_special("<|im_end|>", []) == "<|im_end|>"


# ---- failures


def test_missing_template_names_the_flag() -> None:
    assert ChatTemplate(None).is_missing
    with pytest.raises(BadRequest, match="--chat-template"):
        ChatTemplate(None).render(CHAT)


def test_syntax_errors_name_their_line() -> None:
    with pytest.raises(BadRequest, match="line 2"):
        ChatTemplate("ok\n{% if %}")
    with pytest.raises(BadRequest, match="line 1"):
        ChatTemplate("{{ messages | nosuchfilter }}")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("{{ messages[7].role }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 3 }}", "TypeError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "OverflowError"),
    ],
)
def test_failures_while_rendering_are_the_callers_to_mend_and_name_their_line(body: str, word: str) -> None:
    template = ChatTemplate("line one\n\n" + body)
    with pytest.raises(BadRequest, match=word) as caught:
        template.render(CHAT)
    assert caught.value.at == "--chat-template, line 3"


def test_flags_that_exclude_each_other_and_nothing_to_continue() -> None:
    template = ChatTemplate(CHATML)
    with pytest.raises(BadRequest, match="not both"):
        template.render(CHAT, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(BadRequest, match="to continue"):
        template.render([], continue_final_message=True)
    with pytest.raises(BadRequest, match="leaves it out"):
        ChatTemplate("{{ messages[0].content }}").render(CHAT, continue_final_message=True)


def test_rendering_changes_no_argument() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "x"}], "tool_calls": []}]
    before = json.dumps(chat)
    ChatTemplate(CHATML).render(chat, continue_final_message=True)
    assert json.dumps(chat) == before
