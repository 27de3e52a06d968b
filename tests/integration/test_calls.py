"""Calls between services: what is repeated by itself, and what is not."""

import pytest
from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceStub

from servicekit.errors import Unavailable
from servicekit.identity import Behalf
from services.presence.service import PresenceService
from tests.support.services import connected, presence_service, presence_settings


async def test_what_a_service_has_given_up_on_is_not_sent_to_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0

    def give_up(*_arguments: object, **_named: object) -> None:
        nonlocal calls
        calls += 1
        raise Unavailable("Not now.")

    monkeypatch.setattr(PresenceService, "announce", give_up)
    async with presence_service(presence_settings()) as port, connected(port) as client:
        announce = PresenceServiceStub(client.channel).Announce
        news = presence_pb2.Invalidation(account_id="us_a", canvas_id="c", revision=1)
        request = presence_pb2.AnnounceRequest(invalidations=[news])

        with pytest.raises(Unavailable, match="Not now"):
            await client.call(announce, request, Behalf())

    assert calls == 1
