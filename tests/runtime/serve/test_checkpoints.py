"""Checkpoints over HTTP: sealed, the asker's own, and nothing in them is trusted."""

import msgspec
import pytest
from tests.runtime.serve.scripted import served

from ramet.runtime.checkpoint import SavedProgram, pack, unpack
from ramet.runtime.conversation import Conversation
from ramet.runtime.errors import BadRequest
from ramet.runtime.serve.config import ServeConfig

ALICE, BOB = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))


async def opened(http, headers=None, salt: str = "") -> str:
    program = (await http.post("/v1/programs", json={"salt": salt}, headers=headers)).json()["program_id"]
    piece = {"pieces": [{"type": "text", "text": "Once upon a time"}]}
    await http.post(f"/v1/programs/{program}/branches/0/extend", json=piece, headers=headers)
    return str(program)


async def saved_bytes(http, program: str, headers=None) -> bytes:
    answer = await http.post(f"/v1/programs/{program}/checkpoint", headers=headers)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/octet-stream"
    return bytes(answer.content)


async def test_a_program_goes_on_from_what_the_server_gave() -> None:
    async with served("and so on") as http:
        program = await opened(http)
        sealed = await saved_bytes(http, program)
        again = await http.post("/v1/programs/restore", content=sealed)
        assert again.status_code == 400 and "open on this engine already" in again.json()["error"]["message"]
        await http.delete(f"/v1/programs/{program}")
        restored = (await http.post("/v1/programs/restore", content=sealed)).json()
        assert restored == {"program_id": program, "branch_ids": [0]}
        text = await http.get(f"/v1/programs/{program}/branches/0/text")
        assert text.json()["text"] == "Once upon a time"
        resumed = await http.post(f"/v1/programs/{program}/branches/0/resume")
        assert resumed.status_code == 400 and "middle of a generation" in resumed.json()["error"]["message"]


async def test_what_is_torn_changed_or_made_up_opens_nothing() -> None:
    async with served("ok") as http:
        program = await opened(http)
        sealed = await saved_bytes(http, program)
        await http.delete(f"/v1/programs/{program}")
        saved = unpack(sealed)
        (branch,) = saved.branches

        def changed(**fields: object) -> bytes:
            return pack(msgspec.structs.replace(saved, branches=[msgspec.structs.replace(branch, **fields)]))

        bad = [sealed[:-1], sealed[:30], b"", sealed[:-1] + bytes([sealed[-1] ^ 1])]
        bad += [changed(tokens=b"abc"), changed(tokens=b"\xff" * 4), changed(conversation=7), changed(branch_id=9)]
        bad += [pack(msgspec.structs.replace(saved, branches=[]))]
        for body in bad:
            answer = await http.post("/v1/programs/restore", content=body)
            assert answer.status_code == 400, answer.text
        assert (await http.post("/v1/programs/restore", content=sealed)).status_code == 200


async def test_a_checkpoint_brings_no_template_and_no_other_cache() -> None:
    config = ServeConfig(api_keys=("alice", "bob"), isolate_cache=True)
    async with served("ok", config=config) as http:
        plain, salted = await opened(http, ALICE), await opened(http, ALICE, "pepper")
        assert (await http.post(f"/v1/programs/{plain}/checkpoint", headers=BOB)).status_code == 404
        saved = unpack(await saved_bytes(http, plain, ALICE))
        assert saved.spec.salt == saved.spec.tenant == "", "hashes of a key stay here"
        alices = unpack(await saved_bytes(http, salted, ALICE)).spec.salt
        stolen = msgspec.structs.replace(saved.spec, program_id="stolen", salt=alices)
        assert (await restore(http, msgspec.structs.replace(saved, spec=stolen), BOB)).status_code == 200
        assert unpack(await saved_bytes(http, "stolen", BOB)).spec.salt not in ("", alices)
        assert (await http.get("/v1/programs/stolen/branches/0/text", headers=ALICE)).status_code == 404
        talk = [Conversation(template_text="{% for a in range(9) %}{% endfor %}")]
        spec = msgspec.structs.replace(saved.spec, program_id="templated")
        refused = await restore(http, msgspec.structs.replace(saved, spec=spec, conversations=talk), BOB)
        assert refused.status_code == 400 and "--request-templates" in refused.json()["error"]["message"]


async def restore(http, saved: SavedProgram, headers):
    return await http.post("/v1/programs/restore", content=pack(saved), headers=headers)


def test_another_kind_of_file_is_told_as_such() -> None:
    with pytest.raises(BadRequest, match="another kind of file"):
        unpack(b"GGUF" + bytes(100))
