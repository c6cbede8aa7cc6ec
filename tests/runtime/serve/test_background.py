"""Background responses: the answer comes at once, the response is fetched, continued or cancelled later."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.runtime.errors import EngineFailed
from ramet.runtime.serve.background import BackgroundResponses

sys.path.insert(0, str(Path(__file__).parent))
from scripted import served


async def create(http: httpx.AsyncClient, **body: Any) -> Any:
    return (await http.post("/v1/responses", json={"input": "Hi", "background": True, **body})).json()


async def fetched(http: httpx.AsyncClient, response_id: str) -> Any:
    """The response once it has ended."""
    for _ in range(500):
        response = (await http.get(f"/v1/responses/{response_id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.01)
    raise AssertionError(f"{response_id} does not end")


async def test_it_is_queued_then_completed_and_can_be_continued() -> None:
    async with served("Hello!") as http:
        begun = await create(http)
        assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
        response = await fetched(http, begun["id"])
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == "Hello!"
        assert response["usage"]["output_tokens"] > 0
        more = {"input": "And?", "previous_response_id": begun["id"]}
        assert (await http.post("/v1/responses", json=more)).json()["status"] == "completed"
        again = (await http.post(f"/v1/responses/{begun['id']}/cancel")).json()
    assert again == response  # what has ended stays as it is


async def test_cancelled_it_stops_and_holds_nothing() -> None:
    async with served() as http:  # noise without an end
        begun = await create(http, max_output_tokens=7_000)
        cancelled = (await http.post(f"/v1/responses/{begun['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert (await http.get(f"/v1/responses/{begun['id']}")).json()["status"] == "cancelled"
        assert (await http.get("/health")).json()["in_flight"] == 0


async def test_deleted_it_stops_and_is_forgotten() -> None:
    async with served() as http:
        begun = await create(http, max_output_tokens=7_000)
        assert (await http.delete(f"/v1/responses/{begun['id']}")).json()["deleted"]
        assert (await http.get(f"/v1/responses/{begun['id']}")).status_code == 404
        assert (await http.get("/health")).json()["in_flight"] == 0


async def test_a_failure_is_a_status() -> None:
    kept: list[dict[str, Any]] = []

    async def work() -> dict[str, Any]:
        raise EngineFailed("the engine stopped")

    background = BackgroundResponses()
    background.start("", {"id": "resp_1"}, work, kept.append)
    while len(background):
        await asyncio.sleep(0)
    assert [response["status"] for response in kept] == ["queued", "in_progress", "failed"]
    assert kept[-1]["error"] == {"code": "engine_failed", "message": "the engine stopped"}


@pytest.mark.parametrize(("extra", "said"), [({"stream": True}, "not built"), ({"store": False}, "`store`")])
async def test_what_cannot_go_together_is_told(extra: dict[str, Any], said: str) -> None:
    async with served("Hello") as http:
        answer = await http.post("/v1/responses", json={"input": "Hi", "background": True, **extra})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_only_background_responses_can_be_cancelled() -> None:
    async with served("Hello") as http:
        whole = (await http.post("/v1/responses", json={"input": "Hi"})).json()
        answer = await http.post(f"/v1/responses/{whole['id']}/cancel")
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]
