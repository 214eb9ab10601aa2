"""Who must wait before he tries a password again: by account, and by the address he calls from.

A table in memory, bounded, told the time: nothing here reads a clock. It forgets what is old, and
everything at a restart, which nobody outside can bring about. An attempt counts when it begins,
so that many at once are no way around it.
"""

from collections import OrderedDict
from collections.abc import Hashable

#: After the free attempts each waits twice as long as the one before, from 1 s up to 5 min.
WAIT_FIRST_MS = 1_000
WAIT_LAST_MS = 300_000
#: Nobody is remembered for longer after his last attempt.
KEPT_MS = 900_000
#: Two threads verify some 36 passwords a second, so 15 minutes hold 32,400 names: room to spare.
ENTRIES_MAX = 65_536

ACCOUNT_FREE = 5
#: Behind one address there may be a whole office.
ADDRESS_FREE = 30
#: Each login is a row and an audit row: who has the password is no flood either.
LOGINS_FREE = 60


class _Entry:
    __slots__ = ("attempts", "next_at_ms", "tried_at_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.tried_at_ms = 0
        self.next_at_ms = 0


class Backoff:
    """Attempts of one kind of somebody. `free` of them wait for nothing."""

    def __init__(self, free: int) -> None:
        self._free = free
        # Ordered by the last attempt, so that the oldest is forgotten first.
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def wait_ms(self, who: Hashable, now_ms: int) -> int:
        """How long until he may try again; 0 when he may."""
        entry = self._entries.get(who)
        return 0 if entry is None else max(0, entry.next_at_ms - now_ms)

    def begin(self, who: Hashable, now_ms: int) -> bool:
        """An attempt begins; whether it is the first after which he has to wait."""
        self._forget(now_ms)
        entry = self._entries.setdefault(who, _Entry())
        self._entries.move_to_end(who)
        entry.attempts += 1
        entry.tried_at_ms = now_ms
        beyond = entry.attempts - self._free
        if beyond >= 0:
            # 2^19 ms is past the longest wait: larger powers are not worth computing.
            entry.next_at_ms = now_ms + min(WAIT_LAST_MS, WAIT_FIRST_MS << min(beyond, 19))
        return beyond == 0

    def take_back(self, who: Hashable) -> None:
        """An attempt was none: it could not be made, or was right."""
        entry = self._entries.get(who)
        if entry is None:
            return
        entry.attempts -= 1
        if entry.attempts < self._free:
            entry.next_at_ms = 0
        if entry.attempts <= 0:
            del self._entries[who]

    def clear(self, who: Hashable) -> None:
        """He showed the right password: what was tried before is forgotten."""
        self._entries.pop(who, None)

    def _forget(self, now_ms: int) -> None:
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if len(self._entries) < ENTRIES_MAX and oldest.tried_at_ms + KEPT_MS > now_ms:
                return
            self._entries.popitem(last=False)


class Throttle:
    """Both tables, and the addresses from which somebody has logged in before.

    From such an address, and from this machine, a user is told apart from strangers: those who
    try his name elsewhere do not keep him out. Used on the event loop alone.
    """

    def __init__(self) -> None:
        self._accounts = Backoff(ACCOUNT_FREE)
        self._addresses = Backoff(ADDRESS_FREE)
        self._logins = Backoff(LOGINS_FREE)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, username: str, address: str, now_ms: int) -> tuple[int, bool]:
        """An attempt begins unless one of the two must wait: (ms to wait, or 0; told to wait now).

        The second is true once, at the attempt after which the account has to wait. An empty
        address (this machine, a proxy that names nobody) is not counted.
        """
        account = self._account(username, address)
        wait_ms = max(
            self._accounts.wait_ms(account, now_ms), self._logins.wait_ms(username, now_ms)
        )
        if address:
            wait_ms = max(wait_ms, self._addresses.wait_ms(address, now_ms))
        if wait_ms:
            return wait_ms, False
        if address:
            self._addresses.begin(address, now_ms)
        return 0, self._accounts.begin(account, now_ms)

    def sign_up(self, address: str, now_ms: int) -> int:
        """Somebody signs up from an address: ms to wait, or 0; it counts like a wrong password.

        Where addresses tell nobody apart all sign-ups count together.
        """
        wait_ms = self._addresses.wait_ms(address, now_ms)
        if not wait_ms:
            self._addresses.begin(address, now_ms)
        return wait_ms

    def unmade(self, username: str, address: str) -> None:
        """The attempt was not made: the daemon had no time for it."""
        self._accounts.take_back(self._account(username, address))
        if address:
            self._addresses.take_back(address)

    def right(self, username: str, address: str, now_ms: int) -> None:
        """The attempt was right. The address keeps what it tried under other names."""
        self._logins.begin(username, now_ms)
        self._accounts.clear(self._account(username, address))
        if address:
            self._addresses.take_back(address)
            self._known[username, address] = None
            self._known.move_to_end((username, address))
            while len(self._known) > ENTRIES_MAX:
                self._known.popitem(last=False)

    def _account(self, username: str, address: str) -> Hashable:
        if not address or (username, address) in self._known:
            return username, address
        return username
