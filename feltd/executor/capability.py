"""The handler behind every definition of the executor: find the program, run it, say how it ended.

A failure says one sentence, the seed's; why stands in the attempt's log. What cannot be run here is
given back, so that another worker may.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from feltd.errors import Refused
from feltd.executor import builtins, running
from feltd.executor.modules import Modules
from feltd.executor.places import Share
from feltd.executor.programs import BUILTINS, Catalogue, Program
from feltd.executor.records import Held, Records
from feltd.executor.steps import OUTPUT_BYTES_MAX, UNAVAILABLE, Failed, Malformed
from feltd.model.policy import RuntimePolicy
from feltd.worker.context import AsyncContext
from feltd.worker.failures import Fenced, GivenBack, Permanent, Transient
from feltd.worker.runtimes.runtime import policy_of

if TYPE_CHECKING:
    from feltd.executor.room import Enlisted

log = logging.getLogger("feltd.executor")

#: What is not run here is given back, but not in a tight circle.
NOT_HERE_PAUSE_S = 1.0


class Capability:
    """Runs the definition of each claim.

    `places` bounds the processes of the tenant; `withdrawn` offers what is left to be run.
    """

    #: It keeps to the policy of the claim itself.
    enforces_policy = True

    def __init__(
        self,
        session: "Enlisted",
        catalogue: Catalogue,
        records: Records,
        places: Share,
        withdrawn: Callable[[], Awaitable[None]],
    ) -> None:
        self._session = session
        self._withdrawn = withdrawn
        self._modules = Modules()
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
        if program is not None:
            try:
                return await self._in_a_process(program, ctx, policy, held)
            except Malformed as error:
                self._catalogue.reject(definition, program.text, str(error))
        # No more of it comes here before the registration says so.
        try:
            await self._withdrawn()
        except Exception as error:
            log.warning("what can be run could not be said: %s", error)
        await asyncio.sleep(NOT_HERE_PAUSE_S)
        raise GivenBack(f"{definition} cannot be run here")

    async def _in_a_process(
        self, program: Program, ctx: AsyncContext, policy: RuntimePolicy, held: Held
    ) -> Any:
        given = msgspec.json.encode(ctx.input)
        async with self._places:
            if program.runtime == "wasm":
                return await self._modules.run(program.module, given, policy, ctx.claim)
            bounds = running.bounds_of(policy)
            return await running.run(program.text, given, bounds, held, self._records)
