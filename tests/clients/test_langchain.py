"""langchain-openai, langchain-anthropic, langgraph: text, stream, forced tool, structured output, two turns."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import BASE, OPENAI_BASE, QUESTION
from six_turns import MAX_TOKENS, QUESTIONS, RESULT, SYSTEM, TOOL, six_turns

pytestmark = pytest.mark.clients


def test_chat_models() -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI, OpenAI
    from pydantic import BaseModel

    class Weather(BaseModel):
        """Weather of a city."""

        city: str
        degrees: int

    chat = ChatOpenAI(model="m", base_url=OPENAI_BASE, api_key="none", temperature=0, max_tokens=200)
    assert chat.invoke("Say hello.").content
    assert "".join(chunk.content for chunk in chat.stream("Say hello."))
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Weather, method=method).invoke(QUESTION), Weather)
    forced = chat.bind_tools([Weather], tool_choice="Weather").invoke(QUESTION)
    assert forced.tool_calls[0]["name"] == "Weather" and forced.usage_metadata["input_tokens"] > 0
    assert ChatAnthropic(model="m", base_url=BASE, api_key="none", max_tokens=12).invoke("Hi").content
    assert OpenAI(model="m", base_url=OPENAI_BASE, api_key="none", max_tokens=4).invoke("The sky is")
    assert (
        ChatOpenAI(model="m", base_url=OPENAI_BASE, api_key="none", use_responses_api=True, max_tokens=32)
        .invoke("Hi")
        .text
    )


def test_langgraph_tool_node() -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    @tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return "sunny"

    chat = ChatOpenAI(model="m", base_url=OPENAI_BASE, api_key="none", temperature=0, max_tokens=100)
    asks = chat.bind_tools([weather], tool_choice="weather")
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda state: {"messages": [asks.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([weather]))
    graph.add_node(
        "answer", lambda state: {"messages": [chat.bind_tools([weather], tool_choice="none").invoke(state["messages"])]}
    )
    for left, right in ((START, "ask"), ("ask", "tools"), ("tools", "answer"), ("answer", END)):
        graph.add_edge(left, right)
    result = graph.compile().invoke({"messages": [("user", QUESTION)]})
    assert result["messages"][-2].content == "sunny"


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_six_turns(kind: str) -> None:
    from importlib.metadata import version

    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    def chat(max_tokens: int) -> object:
        if kind == "anthropic":
            return ChatAnthropic(
                model="m",
                base_url=BASE,
                api_key="none",
                max_tokens=max_tokens,
                model_kwargs={"extra_body": {"temperature": 0}},
            )
        return ChatOpenAI(
            model="m",
            base_url=OPENAI_BASE,
            api_key="none",
            temperature=0,
            max_tokens=max_tokens,
            use_responses_api=kind == "responses",
        )

    forced, none = ("any", {"type": "none"}) if kind == "anthropic" else ("required", "none")
    asks = chat(200).bind_tools([TOOL], tool_choice=forced, parallel_tool_calls=False)
    says = chat(MAX_TOKENS).bind_tools([TOOL], tool_choice=none)
    messages: list = [SystemMessage(SYSTEM)]
    package = "langchain-anthropic" if kind == "anthropic" else "langchain-openai"
    with six_turns(f"{package} {version(package)} {kind}"):
        for question in QUESTIONS:
            messages.append(HumanMessage(question))
            messages.append(asks.invoke(messages))
            messages.append(ToolMessage(RESULT, tool_call_id=messages[-1].tool_calls[0]["id"]))
            messages.append(says.invoke(messages))
