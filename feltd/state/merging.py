"""JSON merge patches (RFC 7396) on stored values: pure, and the same result when repeated."""

from typing import Any

from msgspec.json import Decoder, Encoder

_DECODER = Decoder()
_ENCODER = Encoder(order="deterministic")


def merged(value: str, patch: bytes) -> str:
    """A stored value with a patch applied, as it is stored.

    Members that are null in the patch are taken out, objects are merged member by member, anything
    else replaces what stood there; a patch that is no object replaces the whole value.
    """
    return _ENCODER.encode(merge(_DECODER.decode(value), _DECODER.decode(patch))).decode()


def merge(value: Any, patch: Any) -> Any:
    """The value after the patch; both are at most 32 deep."""
    if not isinstance(patch, dict):
        return patch
    after = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            after.pop(name, None)
        else:
            after[name] = merge(after.get(name), part)
    return after
