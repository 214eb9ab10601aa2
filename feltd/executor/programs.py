"""Which definitions the executor of a tenant can run, and what each of them is.

A program is a record of `_flow_capabilities` under the definition's name. One that cannot be read
is nobody's failure: its definition is not offered, and its work is left to other workers. The
built-ins come first; no record takes their names.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
from typing import Literal, NamedTuple

import msgspec

from feltd.executor.records import Found, Records
from feltd.executor.steps import Malformed, compiled
from feltd.worker.runtimes import wasm

log = logging.getLogger("feltd.executor")

BUILTINS = frozenset({"search", "identity"})
#: What every WebAssembly module begins with.
MAGIC = b"\x00asm"


class Program(NamedTuple):
    """A program that can be run here: a pipeline as its record has it, or a module."""

    runtime: Literal["pipeline", "wasm"]
    #: JSON of the record.
    text: bytes
    module: bytes = b""


class _Written(msgspec.Struct):
    """What every program says of itself."""

    runtime: str


class _Module(msgspec.Struct, forbid_unknown_fields=True):
    """A WebAssembly program, its module in base64."""

    runtime: Literal["wasm"]
    module: str


def read(value: bytes) -> Program:
    """The program of a record; raises Malformed for what cannot be run here, and why."""
    try:
        runtime = msgspec.json.decode(value, type=_Written).runtime
        if runtime == "pipeline":
            compiled(msgspec.json.decode(value))
            return Program("pipeline", value)
        if runtime == "wasm":
            return Program("wasm", value, _module(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    raise Malformed(f"there is no runtime {runtime}; there are pipeline and wasm")


def _module(value: bytes) -> bytes:
    if not wasm.available():
        raise Malformed(wasm.NOT_INSTALLED)
    try:
        module = base64.b64decode(msgspec.json.decode(value, type=_Module).module, validate=True)
    except binascii.Error as error:
        raise Malformed(f"module is not base64: {error}") from None
    if not module.startswith(MAGIC):
        raise Malformed("module is no WebAssembly module")
    return module


class Catalogue:
    """The definitions of one tenant that can be run here, kept up with what is written."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: set[str] = set()
        #: Programs that turned out to be none when they should run, by what they were.
        self._rejected: dict[str, bytes] = {}
        self._following = asyncio.Lock()

    @property
    def definitions(self) -> frozenset[str]:
        """Every definition that can be run, built-ins among them."""
        return BUILTINS | self._known

    async def follow(self) -> None:
        """Take in what was written since the last time; the first time, everything."""
        async with self._following:
            async for written in self._records.programs():
                # A name may have been written twice: the last word counts.
                page = list({found.name: found for found in written.programs}.values())
                if written.anew:
                    self._known.clear()
                # Reading a thousand programs takes a moment that nobody else should wait.
                well = await asyncio.to_thread(_runnable, page)
                for found in page:
                    again = found.value is not None and self._was_rejected(found.name, found.value)
                    if found.name in well and not again:
                        self._known.add(found.name)
                    else:
                        self._known.discard(found.name)

    async def program(self, definition: str) -> Program | None:
        """A program as it is now; None where there is none that can be run."""
        value = await self._records.program(definition)
        if value is not None and not self._was_rejected(definition, value):
            try:
                return read(value)
            except Malformed as error:
                self.reject(definition, value, str(error))
        self._known.discard(definition)
        return None

    def reject(self, definition: str, value: bytes, why: str) -> None:
        """What was taken for a program cannot be run here, for as long as it stays as it is."""
        log.warning("%s cannot be run here: %s", definition, why)
        self._rejected[definition] = hashlib.sha256(value).digest()
        self._known.discard(definition)

    def _was_rejected(self, definition: str, value: bytes) -> bool:
        known = self._rejected.get(definition)
        if known is not None and known != hashlib.sha256(value).digest():
            del self._rejected[definition]
            return False
        return known is not None


def _runnable(page: list[Found]) -> set[str]:
    well = set()
    for found in page:
        if found.value is None or found.name in BUILTINS:
            continue
        try:
            read(found.value)
        except Malformed as error:
            log.warning("%s cannot be run here: %s", found.name, error)
        else:
            well.add(found.name)
    return well
