"""Work by hand is possible on a platform that does not say whose token it is."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.model.errors import Forbidden, NotFound, PlatformError, Unauthenticated, Unavailable
from runner.platform.client import Client
from runner.report.hand_record import caller


def client(answer: PlatformError | None) -> Client:
    def me() -> Any:
        if answer:
            raise answer
        return SimpleNamespace(actor_type="user", subject="s-1")

    return cast(Client, SimpleNamespace(me=me))


@pytest.mark.parametrize("error", [NotFound("404"), Forbidden("403"), Unavailable("odd", code="bad_answer")])
def test_a_platform_that_does_not_name_the_caller_is_no_reason_to_refuse(error: PlatformError) -> None:
    assert caller(client(error)) == "unknown"


def test_the_caller_is_named_and_a_refused_token_ends_the_command() -> None:
    assert caller(client(None)) == "user/s-1"
    with pytest.raises(Unauthenticated):
        caller(client(Unauthenticated("401")))
