"""A pipeline in its process: answered step by step, bounded from within and from without."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feltd.executor import child, running
from feltd.executor.programs import read
from feltd.executor.records import Held, Page
from feltd.executor.running import Bounds
from feltd.executor.steps import Failed, Malformed
from feltd.model.policy import RuntimePolicy
from tests.executor.pipelines import program, ref

pytestmark = pytest.mark.anyio

HELD = Held("workload_1", "claim_1", "worker_1", 1, 1)
ROOMY = running.bounds_of(RuntimePolicy())
READ = {"op": "get", "name": "it", "collection": "c", "id": "1"}


class Shelf:
    """Records that answer whatever they were told to, and count."""

    def __init__(self, answer: Any = None, refuses: Exception | None = None) -> None:
        self.answer = answer
        self.refuses = refuses
        self.asked: list[dict[str, Any]] = []

    async def ask(self, held: Held, asked: dict[str, Any]) -> Any:
        assert held == HELD
        self.asked.append(asked)
        if self.refuses is not None:
            raise self.refuses
        return self.answer

    async def program(self, name: str) -> bytes | None:
        return None

    async def programs(self) -> Any:
        for page in list[Page]():
            yield page


async def outcome(shelf: Shelf, given: Any, *steps: Any, bounds: Bounds = ROOMY) -> Any:
    text = msgspec.json.encode(program(*steps))
    output = await running.run(text, msgspec.json.encode(given), bounds, HELD, shelf)
    return msgspec.json.decode(output)


async def status(shelf: Shelf, given: Any, *steps: Any, bounds: Bounds = ROOMY) -> int:
    with pytest.raises(Failed) as ended:
        await outcome(shelf, given, *steps, bounds=bounds)
    return ended.value.status


async def test_each_step_is_answered_and_the_output_comes_back() -> None:
    shelf = Shelf({"value": ["zäh", None, 2**53 - 1, 0.5]})
    emit = {"op": "emit", "value": ref("steps.it.value")}
    assert await outcome(shelf, None, READ, emit) == [["zäh", None, 2**53 - 1, 0.5]]
    assert shelf.asked[0]["collection"] == "c"


async def test_what_the_records_refuse_is_how_the_program_ends() -> None:
    assert await status(Shelf(refuses=Failed(409, "no")), None, READ) == 409
    assert await status(Shelf(None), None, READ) == 404
    with pytest.raises(LookupError):
        await outcome(Shelf(refuses=LookupError("of the claim")), None, READ)


async def test_a_program_that_was_never_read_ends_as_malformed() -> None:
    assert await status(Shelf(), None, {"op": "loop"}) == 422


async def test_time_memory_and_processor_are_bounded() -> None:
    many = {"op": "get", "each": ref("input"), "collection": "c", "id": "1"}
    numbers = list(range(10_000))
    found = Shelf({"value": "x" * 200})
    short = ROOMY._replace(duration_ms=120)
    assert await status(found, numbers, many, bounds=short) == 408
    busy = ROOMY._replace(cpu_ms=20)
    assert await status(found, numbers, many, bounds=busy) == 408
    small = ROOMY._replace(memory_bytes=2_000_000)
    assert await status(found, ["x" * 200_000], many, bounds=small) == 413


async def test_what_no_record_may_have_never_reaches_the_daemon() -> None:
    shelf = Shelf({})
    many = {"op": "put", "collection": "c", "id": "1", "value": [ref("input")] * 30}
    assert await status(shelf, [[]] * 80_000, many) == 422
    assert shelf.asked == []
    lacking = {"op": "emit", "value": ref("input." + "x" * 900_000)}
    with pytest.raises(Failed) as ended:
        await outcome(shelf, {}, lacking)
    assert ended.value.status == 422
    assert len(ended.value.why) <= child.WHY_CHARACTERS_MAX


async def test_a_process_that_says_too_much_at_once_is_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "FRAME_BYTES_MAX", 100)
    assert await status(Shelf(), "x" * 200, {"op": "emit", "value": ref("input")}) == 413


async def test_a_large_answer_fits_in_the_memory_it_may_have() -> None:
    shelf = Shelf({"value": [{"n": number, "text": "some words"} for number in range(100_000)]})
    kept = {"op": "emit", "value": ref("steps.it.value.99999.n")}
    assert await outcome(shelf, None, READ, kept) == [99_999]


async def test_a_run_that_is_called_off_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[asyncio.subprocess.Process] = []
    start = running._start

    async def noted(bounds: Bounds) -> asyncio.subprocess.Process:
        begun.append(await start(bounds))
        return begun[-1]

    monkeypatch.setattr(running, "_start", noted)
    asked = asyncio.Event()

    class Silent(Shelf):
        async def ask(self, held: Held, step: dict[str, Any]) -> Any:
            asked.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(outcome(Silent(), None, READ))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun[0].returncode is not None


async def test_the_process_may_open_nothing(tmp_path: Path) -> None:
    """What a program could do if it got out of its steps: tried from inside its process."""
    attempt = (
        "import os, socket, resource\n"
        "from feltd.executor.child import confine\n"
        "import sys\n"
        "confine(64 << 20, 5_000, os.getppid(), bytes.fromhex(sys.argv[1]))\n"
        "for act in (lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX),\n"
        "            lambda: os.write(os.open(sys.argv[2], 1 | 64), b'x')):\n"
        "    try:\n"
        "        act()\n"
        "        print('done')\n"
        "    except OSError as error:\n"
        "        print('refused')\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(running.sys.executable, "-c", attempt, running._no_sockets(), str(tmp_path / "f")),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert told.split() == [b"refused"] * 3


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"[]", b"{}", b'{"runtime": 1}', b'{"runtime": "wasm"}', b"{" * 50_000,
     b'{"runtime": "wasm", "module": "AGFzbQ"}', b'{"runtime": "wasm", "module": "Zm9v"}',
     b'{"runtime": "wasm", "module": "AGFzbQ==", "more": 1}'],
)  # fmt: skip
async def test_what_is_no_program_is_never_one(value: bytes) -> None:
    with pytest.raises(Malformed):
        read(value)
