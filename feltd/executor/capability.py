"""The handler behind every definition of the executor: find the program, run it, say how it ended.

A failure says one sentence, the seed's; why stands in the attempt's log. What cannot be run here is
given back, so that another worker may.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from feltd.errors import Refused
from feltd.executor import builtins, running
from feltd.executor.programs import BUILTINS, Catalogue, Program
from feltd.executor.records import UNAVAILABLE, Held, Records
from feltd.executor.steps import OUTPUT_BYTES_MAX, Failed
from feltd.worker.context import AsyncContext
from feltd.worker.failures import Fenced, GivenBack, Permanent, Transient
from feltd.worker.runtimes.runtime import policy_of

if TYPE_CHECKING:
    from feltd.executor.room import Enlisted

log = logging.getLogger("feltd.executor")

#: What is not run here is given back, but not in a tight circle.
NOT_HERE_PAUSE_S = 1.0


class Capability:
    """Runs the definition of each claim. `places` bounds the processes of the whole daemon."""

    #: It keeps to the policy of the claim itself.
    enforces_policy = True

    def __init__(
        self,
        session: "Enlisted",
        catalogue: Catalogue,
        records: Records,
        places: asyncio.Semaphore,
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._records = records
        self._places = places

    async def __call__(self, ctx: AsyncContext) -> Any:
        """The output. Raises Permanent with the status, Transient for storage in trouble,
        GivenBack where the definition cannot be run here, Fenced once the claim is over.
        """
        definition = ctx.definition_id
        try:
            output = msgspec.json.encode(await self._run(definition, ctx))
            if len(output) > OUTPUT_BYTES_MAX:
                raise Failed(413, f"the output is over {OUTPUT_BYTES_MAX} bytes")
            return msgspec.Raw(output)
        except Failed as failed:
            ctx.log(f"status {failed.status}: {failed.why}", level="error")
            said = f"capability {definition} failed with status {failed.status}"
            if failed.status == UNAVAILABLE:
                raise Transient(said) from None
            raise Permanent(said) from None
        except Refused as refused:
            # Of the claim, not of what the program asked for.
            raise Fenced(f"{refused.code}: {refused.detail}") from None

    async def _run(self, definition: str, ctx: AsyncContext) -> Any:
        claim = ctx.claim
        held = Held(
            ctx.workload_id,
            str(claim["claim_id"]),
            self._session.worker_id,
            ctx.fence,
            self._session.incarnation,
        )
        policy = policy_of(claim, None)
        if definition in BUILTINS:
            return await builtins.run(definition, ctx.input, held, self._records)
        program = await self._catalogue.program(definition)
        if program is None:
            log.warning("%s is no program here any more: giving it back", definition)
            await asyncio.sleep(NOT_HERE_PAUSE_S)
            raise GivenBack(f"{definition} cannot be run here")
        given = msgspec.json.encode(ctx.input)
        async with self._places:
            return await self._in_a_process(program, given, policy, held, claim)

    async def _in_a_process(
        self, program: Program, given: bytes, policy: Any, held: Held, claim: dict[str, Any]
    ) -> Any:
        bounds = running.bounds_of(policy)
        return await running.run(program.text, given, bounds, held, self._records)
