"""Passwords as Argon2id: the text that is kept of one, and whether another is the same.

Pure and slow: about 20 ms and 19 MiB each, so it is called in threads of its own (api/passwords).
The salt comes in from whoever calls. No bearer ever reaches this.
"""

from argon2 import exceptions
from argon2.low_level import Type, hash_secret, verify_secret

MEMORY_KIB = 19_456
PASSES = 2
LANES = 1
SALT_BYTES = 16
HASH_BYTES = 32


def hashed(password: str, salt: bytes) -> str:
    """What is kept of a password: PHC text with its costs; `salt` is 16 random bytes."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt is {SALT_BYTES} bytes")
    raw = hash_secret(password.encode(), salt, PASSES, MEMORY_KIB, LANES, HASH_BYTES, Type.ID)
    return raw.decode("ascii")


def matches(kept: str, password: str) -> bool:
    """Whether a password is the one that is kept; False for text that is no hash."""
    try:
        return verify_secret(kept.encode(), password.encode(), Type.ID)
    except exceptions.VerificationError:
        return False
    except (exceptions.InvalidHashError, UnicodeError):
        return False


#: Nobody's: what a stranger's attempt is compared with, at the cost of a real one.
NOBODY = hashed("nobody has this password", b"\0" * SALT_BYTES)
