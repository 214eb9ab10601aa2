"""JSON and query strings in and out: one function each way, and the cursors of lists.

What cannot be read is REQUEST_MALFORMED; what can be read but does not fit is the route's own
…_INVALID with a JSON pointer to the member. Nothing here knows a noun, a row or a rule.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from feltd.api.unfit import NO_MEMBER, plainly
from feltd.errors import Refused

T = TypeVar("T")

#: The largest integer that every JSON reader holds exactly.
INT_MAX = 2**53 - 1
#: Deeper free JSON is refused; SQLite's JSON functions and most readers go far deeper.
FREE_JSON_DEPTH_MAX = 32
#: A query of more fields than this is nobody's honest question.
QUERY_FIELDS_MAX = 64
#: Rounds of turning whole floats into integers; each round mends one member of the schema, and an
#: exchange, the body with the most, has some thirty that are integers.
WHOLE_FLOAT_ROUNDS_MAX = 48
CURSOR_CHARS_MAX = 2_048

_UNREADABLE = (
    msgspec.DecodeError,
    RecursionError,
    UnicodeError,
    OverflowError,
    ValueError,
)
#: What msgspec writes in a path for the key of a dictionary.
KEY = "..."

_PLACE = re.compile(r"^(?P<what>.*) - at (?P<of_key>`key` in )?`(?P<path>\$[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_FLOAT_FOR_INT = re.compile(r"^Expected `int(?: \| null)?`, got `float`$")
_TEXT_CHARS_MAX = 300
_ENCODER = msgspec.json.Encoder(order="deterministic")


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call that takes none: `{}` or nothing at all."""


def encode(answer: object) -> bytes:
    """Deterministic JSON: sets and dictionary keys sorted, the members of a Struct as declared."""
    return _ENCODER.encode(answer)


def decode(body: bytes, shape: type[T], code: str = "REQUEST_INVALID") -> T:
    """One body as one frozen Struct.

    An empty body reads as `{}`. Whole floats (5.0) are taken where an int is meant. Duplicate
    keys: the last wins. Refuses REQUEST_MALFORMED when it is not JSON, else `code` with
    `errors: [{pointer, detail}]`.
    """
    kind: Any = shape
    if not body and _takes_members(kind):
        body = b"{}"
    try:
        value: T = _decoder(kind).decode(body)
    except msgspec.ValidationError as unfit:
        value = _second_reading(body, shape, unfit, code)
    except _UNREADABLE as unreadable:
        raise _malformed(unreadable) from None
    # NUL can only come as this escape; the precise look is needed for one body in a million.
    if b"\\u0000" in body:
        _refuse(_unfit(msgspec.json.decode(body), -1, of_numbers=False), code, "")
    return value


def check_free_json(
    value: object,
    bytes_max: int,
    depth_max: int = FREE_JSON_DEPTH_MAX,
    *,
    code: str = "REQUEST_INVALID",
    pointer: str = "",
) -> bytes:
    """Refuse free JSON that the store or another reader would not hold as it was sent.

    Integers within ±(2^53−1), no NUL in text or keys, containers nested at most `depth_max`,
    at most `bytes_max` bytes when written as `encode` does. Answers those bytes: store them,
    never the bytes received (duplicate keys are gone from them). `pointer` is the member's place
    in the body; refuses `code`.
    """
    # Written in a hundredth of the time that looking at each part takes: too large ends here.
    canonical = _written(value)
    if canonical is not None and len(canonical) > bytes_max:
        detail = f"takes {len(canonical)} bytes, at most {bytes_max} are allowed"
        raise invalid(code, pointer, detail)
    _refuse(_unfit(value, depth_max), code, pointer)
    return encode(value) if canonical is None else canonical


def _written(value: object) -> bytes | None:
    """A value as JSON; None where it holds what cannot be written, which is told apart later."""
    try:
        return encode(value)
    except (OverflowError, RecursionError, ValueError):
        return None


def query(scope: Any, shape: type[T]) -> T:
    """The query string as one frozen Struct; list members collect repeated parameters.

    A parameter without a value is true where a bool is meant. Refuses REQUEST_INVALID with the
    pointer `/<parameter>` when one is unknown, too many or does not fit.
    """
    return fields(query_pairs(scope["query_string"]), shape)


def fields(pairs: Sequence[tuple[str, str]], shape: type[T]) -> T:
    """Named texts, as a query or a form brings them, as one frozen Struct. Refuses as `query`."""
    wanted: Any = shape
    kinds = _query_kinds(wanted)
    found: dict[str, Any] = {}
    for name, text in pairs:
        kind = kinds.get(name)
        if kind is None:
            raise invalid("REQUEST_INVALID", "/" + _escaped(name), "no such query parameter")
        if "\0" in text:
            raise invalid("REQUEST_INVALID", "/" + name, "holds NUL")
        if kind == "list":
            found.setdefault(name, []).append(text)
        else:
            found[name] = "true" if kind == "bool" and text == "" else text
    try:
        return msgspec.convert(found, shape, strict=False)
    except msgspec.ValidationError as unfit:
        place, detail, steps = _read_message(str(unfit))
        raise invalid("REQUEST_INVALID", place, plainly(detail, shape, steps, place)) from None


def query_pairs(raw: bytes) -> list[tuple[str, str]]:
    """The decoded parameters in order. Refuses REQUEST_INVALID on bad UTF-8 or too many."""
    if not raw:
        return []
    try:
        return parse_qsl(
            raw.decode("latin-1"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise invalid("REQUEST_INVALID", "", "the query string cannot be read") from None


def invalid(code: str, pointer: str, detail: str) -> Refused:
    """The refusal of one member that does not fit."""
    return Refused(
        code,
        f"{pointer or 'the request'}: {detail}"[:_TEXT_CHARS_MAX],
        errors=[{"pointer": pointer[:_TEXT_CHARS_MAX], "detail": detail[:_TEXT_CHARS_MAX]}],
    )


def seal_cursor(secret: bytes, tenant_and_filter: object, values: Sequence[object]) -> str:
    """The `next_cursor` of a page: `values` are the keyset of its last row.

    `tenant_and_filter` is anything `encode` takes and must be the same when the cursor returns;
    `secret` is 32 bytes that outlive a restart. The cursor hides nothing, it only cannot be made
    up or carried to another tenant or filter.
    """
    payload = encode(list(values))
    sealed = _cursor_mac(secret, tenant_and_filter, payload) + payload
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def open_cursor(secret: bytes, tenant_and_filter: object, cursor: str) -> list[Any]:
    """The values sealed in `cursor`. Refuses REQUEST_MALFORMED when it is not one of this list."""
    try:
        if len(cursor) > CURSOR_CHARS_MAX:
            raise ValueError("too long")
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        sealed = base64.b64decode(padded, altchars=b"-_", validate=True)
        mac, payload = sealed[:16], sealed[16:]
        if not hmac.compare_digest(mac, _cursor_mac(secret, tenant_and_filter, payload)):
            raise ValueError("not ours")
        return msgspec.json.decode(payload, type=list[Any])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Refused("REQUEST_MALFORMED", "the cursor does not belong to this list") from None


def _cursor_mac(secret: bytes, tenant_and_filter: object, payload: bytes) -> bytes:
    bound = encode(tenant_and_filter)
    message = b"feltd cursor 1\0" + len(bound).to_bytes(8, "big") + bound + payload
    return hmac.new(secret, message, hashlib.sha256).digest()[:16]


@cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape, strict=True)


@cache
def _takes_members(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, msgspec.Struct)


@cache
def _query_kinds(shape: Any) -> dict[str, str]:
    kinds = {}
    for field in msgspec.inspect.type_info(shape).fields:  # type: ignore[attr-defined]
        parts = getattr(field.type, "types", (field.type,))
        names = {type(part).__name__ for part in parts}
        if names & {"ListType", "SetType", "FrozenSetType", "VarTupleType"}:
            kinds[field.encode_name] = "list"
        else:
            kinds[field.encode_name] = "bool" if "BoolType" in names else "one"
    return kinds


def _malformed(why: Exception) -> Refused:
    if isinstance(why, RecursionError):
        return Refused("REQUEST_MALFORMED", "the body is nested too deeply")
    return Refused("REQUEST_MALFORMED", f"the body is not JSON: {why}"[:_TEXT_CHARS_MAX])


def _second_reading(body: bytes, shape: type[T], unfit: Exception, code: str) -> T:
    """Only bodies that failed come here: mend whole floats one member at a time, or say why not.

    msgspec's strict mode refuses 5.0 for an int, its lax mode also takes "5": so the floats are
    turned by hand, at the very place that was refused, and free JSON keeps its floats.
    """
    said = str(unfit)
    place, detail, steps = _read_message(said)
    try:
        value = msgspec.json.decode(body)
        for _ in range(WHOLE_FLOAT_ROUNDS_MAX):
            if not _FLOAT_FOR_INT.match(detail) or not _make_whole(value, steps):
                break
            try:
                return msgspec.convert(value, shape, strict=True)
            except msgspec.ValidationError as again:
                said = str(again)
                place, detail, steps = _read_message(said)
        if KEY in steps:
            place, detail, _ = _read_message(said, _key_meant(value, shape, said, steps))
    except msgspec.ValidationError:
        pass  # a number out of range is still JSON: it does not fit
    except _UNREADABLE as unreadable:
        raise _malformed(unreadable) from None
    raise invalid(code, place, plainly(detail, shape, steps, place))


def _key_meant(value: Any, shape: Any, said: str, steps: Sequence[str]) -> str | None:
    """Which key of a dictionary was found unfit: msgspec does not say.

    Found by halving the dictionary while the same is said of it; None where that shows nothing.
    """
    members = value
    for step in steps[: steps.index(KEY)]:
        members = members[int(step) if isinstance(members, list) else step]
    if not isinstance(members, dict) or _said(value, shape) != said:
        return None
    whole = dict(members)
    keys = list(whole)
    while len(keys) > 1:
        first, second = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        members.clear()
        members.update((key, whole[key]) for key in first)
        keys = first if _said(value, shape) == said else second
    return str(keys[0])


def _said(value: Any, shape: Any) -> str:
    try:
        msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as unfit:
        return str(unfit)
    return ""


def _make_whole(value: Any, steps: Sequence[str]) -> bool:
    """Turn every whole float at `steps` (array places stand for all of theirs); whether any was."""
    if not steps or not isinstance(value, dict | list):
        return False
    step, rest = steps[0], steps[1:]
    keys: Sequence[Any]
    if isinstance(value, list):
        keys = range(len(value))
    else:
        keys = list(value) if step == KEY else [step] if step in value else []
    turned = False
    for key in keys:
        member = value[key]
        if rest:
            turned = _make_whole(member, rest) or turned
        elif type(member) is float and member.is_integer() and abs(member) <= INT_MAX:
            value[key] = int(member)
            turned = True
    return turned


def _read_message(message: str, key: str | None = None) -> tuple[str, str, list[str]]:
    """msgspec's sentence as (pointer, detail, steps of the path); `key` where it says KEY."""
    placed = _PLACE.match(message)
    what, path = (placed["what"], placed["path"]) if placed else (message, "$")
    steps = [name or index for name, index in _STEP.findall(path)]
    if placed and placed["of_key"]:
        steps.append(KEY)
    told = [key if step == KEY else step for step in steps]
    pointer = "".join("/" + _escaped(step) for step in told if step is not None)
    if named := _UNKNOWN.match(what):
        return f"{pointer}/{_escaped(named[1])}", NO_MEMBER, steps
    if named := _MISSING.match(what):
        return f"{pointer}/{_escaped(named[1])}", "is required", steps
    return pointer, what, steps


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _refuse(unfit: tuple[str, str] | None, code: str, pointer: str) -> None:
    if unfit is not None:
        raise invalid(code, pointer + unfit[0], unfit[1])


def _unfit(value: Any, depth_left: int, *, of_numbers: bool = True) -> tuple[str, str] | None:
    """The first (pointer, reason) that free JSON may not hold; a negative depth never ends."""
    kind = type(value)
    if kind is str:
        return ("", "holds NUL") if "\0" in value else None
    if kind is int:
        return ("", "is beyond ±(2^53−1)") if of_numbers and abs(value) > INT_MAX else None
    if kind is not dict and kind is not list:
        return None
    if depth_left == 0:
        return "", "is nested too deeply"
    members: Any = value.items() if kind is dict else enumerate(value)
    for key, member in members:
        found = _unfit(member, depth_left - 1, of_numbers=of_numbers)
        if type(key) is str and "\0" in key:
            found = "", "holds NUL in a key"
        if found is not None:
            return f"/{_escaped(str(key))}{found[0]}", found[1]
    return None
