"""Behind a proxy only the proxy may bring calls that carry a key."""

from types import SimpleNamespace
from typing import Any

import pytest

from feltd.api.app import behind_proxy
from feltd.errors import Refused

pytestmark = pytest.mark.anyio


async def door(request: Any) -> None:
    request.caller = "let in"


def call(address: str, *, local: bool = False) -> Any:
    return SimpleNamespace(client_address=address, local=local, caller=None)


async def test_without_networks_the_door_stands_alone() -> None:
    assert behind_proxy((), door) is door


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "::1", "::ffff:10.1.2.3", ""])
async def test_the_proxy_and_this_machine_come_through(address: str) -> None:
    request = call(address)
    await behind_proxy(("10.0.0.0/8",), door)(request)
    assert request.caller == "let in"


async def test_anybody_else_is_refused_before_his_key_is_looked_at() -> None:
    request = call("192.0.2.1")
    with pytest.raises(Refused) as refused:
        await behind_proxy(("10.0.0.0/8",), door)(request)
    assert (refused.value.code, request.caller) == ("FORBIDDEN", None)
    operator = call("192.0.2.1", local=True)
    await behind_proxy(("10.0.0.0/8",), door)(operator)
    assert operator.caller == "let in"
