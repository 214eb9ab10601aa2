"""The folder of an attempt: the one place of the machine that a closed program may write to.

It is for a checkpoint and for nothing else, so it is kept small: a program that fills it would fill
the disk of its worker. Looks only, never follows a link, and never looks at more than a bounded
number of names.
"""

import asyncio
import os
from pathlib import Path

#: Two whole checkpoints fit, and what a program writes beside them before it renames one.
BYTES_MAX = 16 * 1024**2
NAMES_MAX = 1_024
BLOCK_BYTES = 512
LOOK_EVERY_S = 0.1


async def overfull(folder: Path) -> None:
    """Return when the folder holds more than BYTES_MAX or NAMES_MAX; until then look and look."""
    while True:
        if holds_too_much(folder):
            return
        await asyncio.sleep(LOOK_EVERY_S)


def holds_too_much(folder: Path) -> bool:
    """Whether the disk has given it more than it may have, or it hides how much.

    What vanishes meanwhile counts not.
    """
    names, taken, waiting = 0, 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    names += 1
                    if names > NAMES_MAX:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    taken += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return taken > BYTES_MAX
