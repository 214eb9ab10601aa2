"""What was found to fit each worker, remembered within bounds.

Workers come and go under new names for ever, and a worker may narrow its pulls as it likes: the
worker longest not asked for is forgotten first. Forgetting costs one comparison with every demand.
"""

from typing import Generic, TypeVar

F = TypeVar("F")

#: A pull may narrow the kinds; so many narrowings of one worker are remembered.
NARROWINGS_MAX = 8
#: Ids remembered over all workers, some 90 bytes each: 500 workers that fit 2,000 demands each.
IDS_MAX = 1_000_000
#: What an entry takes beside its ids, counted in ids.
ENTRY_IDS = 32

Kinds = tuple[str, ...]


class Fits(Generic[F]):
    """Findings by worker and narrowing. Used on the writer's thread alone."""

    def __init__(self) -> None:
        # A dictionary for its order: the worker asked for last stands last.
        self._of: dict[str, dict[Kinds, tuple[F, int]]] = {}
        #: Ids remembered now, entries counted in.
        self.ids = 0

    def get(self, worker_id: str, kinds: Kinds) -> F | None:
        """What was kept for a worker and narrowing, None when it was not, or was forgotten."""
        kept = self._of.pop(worker_id, None)
        if kept is None:
            return None
        self._of[worker_id] = kept
        found = kept.get(kinds)
        return None if found is None else found[0]

    def keep(self, worker_id: str, kinds: Kinds, finding: F, ids: int) -> None:
        """Remember a finding of so many ids in place of the former one."""
        kept = self._of.setdefault(worker_id, {})
        if len(kept) >= NARROWINGS_MAX and kinds not in kept:
            self._forget(worker_id)
            kept = self._of.setdefault(worker_id, {})
        before = kept.get(kinds)
        taken = ids + ENTRY_IDS
        self.ids += taken - (0 if before is None else before[1])
        kept[kinds] = finding, taken
        while self.ids > IDS_MAX and len(self._of) > 1:
            self._forget(next(iter(self._of)))

    def _forget(self, worker_id: str) -> None:
        self.ids -= sum(taken for _, taken in self._of.pop(worker_id).values())
