"""What a channel tells its worker unasked: work up to the credit, cancels, fences, drains.

It looks when a commit told that there may be something, never by the clock alone, and asks the
database each time: what it remembers is only what its worker was told already. What it claimed and
cannot tell any more is given back.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from feltd.api import wire
from feltd.api.claiming import give_back, submit_claiming
from feltd.api.polls import PASSING, Waiter
from feltd.errors import Refused
from feltd.mesh import credits
from feltd.mesh.claims import Post
from feltd.mesh.exchange import ENDING
from feltd.model.base import Ask
from feltd.model.channel import Credit, News, Push
from feltd.model.claim import Claim, Pulled
from feltd.model.exchange import ExchangeAnswer
from feltd.model.worker import Drain

if TYPE_CHECKING:
    from feltd.api.channel import Channel

#: A push as large as this may have left claims for the next one.
LARGE_BYTES = 2 * 1024 * 1024
#: Room that may have been filled already is looked at after this, unless something comes before.
LATER_S = 1.0
#: Refusals after which the channel has no business any more.
OVER = frozenset({"UNAUTHENTICATED", "FORBIDDEN", "WORKER_NOT_FOUND"})


class Pusher(Waiter):
    """The looks of one channel; at most one at a time."""

    __slots__ = (
        "_again",
        "_cancelled",
        "_channel",
        "_drain",
        "_looked_at_s",
        "_room",
        "_seq",
        "_task",
        "_told",
        "credit",
    )

    def __init__(self, channel: "Channel") -> None:
        super().__init__(channel.app.polls, channel.worker_id, channel.key_id)
        self._channel = channel
        self.credit: Credit | None = None
        self._seq = 0
        #: Claims the worker was told of here, and those of them it was told are cancelled.
        self._told: dict[str, None] = {}
        self._cancelled: set[str] = set()
        self._drain: Drain | None = None
        #: Its worker has room that nothing has looked at yet.
        self._room = False
        self._looked_at_s = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # What wakes it

    def poke(self) -> None:
        """Look, now or once the look under way is over."""
        self.pending = True
        if self._task is None and self._channel.is_open:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def freed(self) -> None:
        """The worker ended a claim itself: a frame at work most likely, which may fill the room."""
        self._room = True
        if not self._channel.at_work and self.credit is not None:
            self.poke()

    def look_later(self) -> None:
        """Take up what was put off; asked every moment."""
        late = time.monotonic() - self._looked_at_s >= LATER_S
        if self._task is None and (self.pending or (self._room and self.credit and late)):
            self.poke()

    # What frames bring

    def begins(self, credit: Credit | None) -> int:
        """A frame is about to be done; the wake it looks at."""
        if credit is not None:
            self._room = False
        return self._polls.round

    def answered(
        self,
        number: int,
        before: int,
        credit: Credit | None,
        post: Post,
        answer: ExchangeAnswer,
        answer_bytes: int,
    ) -> None:
        """A frame was done: what its answer tells need not be pushed, and a credit stands."""
        for outcome in answer.outcomes:
            if outcome.ok and outcome.op in ENDING and outcome.claim_id is not None:
                self._forget(outcome.claim_id)
        for claim_id in answer.fenced_claims:
            self._forget(claim_id)
        self._note((*answer.claims, *answer.assigned_claims))
        self._cancelled.update(answer.cancel_claims)
        if credit is not None and number > self._seq:
            self._seq = number
            self.credit = credit if credit.most else None
            self.post = post
            pulled = Pulled(
                claims=answer.claims,
                lifecycle=answer.lifecycle,
                reasons=answer.reasons,
                server_time_ms=answer.server_time_ms,
            )
            self._stand(before, pulled if post.wants else None)
            # A wake that came meanwhile is not lost; as much as one transaction gives is not all.
            if self.pending or (post.wants and _is_whole(answer.claims, answer_bytes)):
                self.poke()
            # Shed, or the heartbeat was refused: that says nothing of what there is.
            self.pending = self.pending or not {one.code for one in answer.reasons} <= PASSING
        elif self._room and not self._channel.at_work and self.credit is not None:
            self.poke()

    def refused(self, credit: Credit | None) -> None:
        """A frame was refused as a whole: what it would have looked at is looked at now."""
        if credit is not None and self.credit is not None:
            self.poke()

    def close(self) -> None:
        """No more looks; one under way gives back what it claims."""
        if self._again is not None:
            self._again.cancel()
        if self._task is not None:
            self._channel.cancel(self._task)

    # Looking

    async def _run(self) -> None:
        try:
            while self.pending and self._channel.is_open:
                if self._channel.crowded:
                    return  # a look is ordinary work: it is put off while the daemon is full
                self.pending = self._room = False
                if not await self._look():
                    return
        finally:
            self._task = None

    async def _look(self) -> bool:
        """Look once; False when it was refused, and nothing else will be done now."""
        channel = self._channel
        before, self.looking = self._polls.round, True
        self._looked_at_s = time.monotonic()
        request = channel.request()
        wish = credits.Looking(self.credit, tuple(self._told))
        ask = Ask(caller=request.caller, body=wish, id=channel.worker_id, limits=channel.app.config)
        try:
            request.admit(keep_alive=False)
            self.post, looked = await submit_claiming(
                request, credits.look, ask, lambda done: done[1].claims
            )
        except Refused as refused:
            self.looking = False
            if refused.code in OVER:
                channel.end_by(refused)
            self.pending = True  # it is put off
            return False
        finally:
            request.finish()
        # Before anything is awaited: a frame that was done later may be answered meanwhile.
        message = self._news(looked, wish.held)
        self._stand(before, looked.pulled if self.post.wants or looked.claims else None)
        if self.post.wants and _is_whole(looked.claims, len(message)):
            self.pending = True
        if not channel.is_open:
            give_back(channel.request(), looked.claims)
        elif message:
            await channel.send(message)
        return True

    def _news(self, looked: credits.Looked, held: Iterable[str]) -> bytes:
        """The push of what is new, noted as told; nothing where nothing is."""
        given = [claim for claim in looked.given if claim.claim_id not in self._told]
        cancelled = [one for one in looked.cancelled if one not in self._cancelled]
        drained = looked.drain != self._drain
        news = News(
            claims=[*looked.claims, *given],
            cancel_claims=cancelled,
            fenced_claims=looked.fenced,
            drain=looked.drain if drained else UNSET,
        )
        self._drain = looked.drain
        for claim_id in set(held).difference(looked.live):
            self._forget(claim_id)
        self._cancelled.intersection_update(looked.live)
        self._cancelled.update(cancelled)
        self._note(news.claims)
        if not (news.claims or cancelled or looked.fenced or drained):
            return b""
        return wire.encode(Push(news))

    def _stand(self, before: int, pulled: Pulled | None) -> None:
        """Back into the queue of its application, if more is wanted."""
        self._polls.stays(self, before, pulled)
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if pulled is not None and self.post.again_ms is not None:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(self.post.again_ms / 1000, self.poke)

    def _note(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._told[claim.claim_id] = None

    def _forget(self, claim_id: str) -> None:
        self._told.pop(claim_id, None)
        self._cancelled.discard(claim_id)


def _is_whole(claims: Sequence[Claim], message_bytes: int) -> bool:
    """Whether as much was given as one transaction gives, so that more may be there."""
    return len(claims) >= credits.PULL_MAX or message_bytes > LARGE_BYTES
