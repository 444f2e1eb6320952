"""Who works by hand, why and on what: the two identities of such a command, and its record.

The person's own token reads the instance and writes the record. The runner's service account does the rest (members,
claims, credentials), since the platform gives no person these rights.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.platform import AppInstance, Member
from runner.model.work_notes import HAND_NAMES, HandNote
from runner.platform.client import Client
from runner.report import hand_record
from runner.report.hand_record import Ending
from runner.settings import Settings

NO_PERSON = (
    "GPUAAS_OPERATOR_TOKEN is not set: work by hand is put on record under your own name. Set it to your token. In an"
    " emergency, if you cannot get one, pass --as-service-account: the record then names the service account alone"
)


@dataclass(frozen=True)
class Hand:
    """A person who works on an instance by hand. `show` prints a line for them."""

    client: Client  # with the person's token
    why: str
    show: Callable[[str], None]
    correlation_id: str
    who: str

    @contextlib.contextmanager
    def recorded(
        self,
        instance: AppInstance,
        verb: Literal["exec", "trust"],
        command: str,
        members: Sequence[Member],
        *,
        read_only: bool = False,
    ) -> Iterator[Ending]:
        """Put the command on record before the block begins, and how it ended afterwards."""
        note = HandNote(
            correlation_id=self.correlation_id,
            verb=verb,
            who=self.who,
            why=self.why,
            command=command,
            hosts=[host_name(one) for one in members][:HAND_NAMES],
            hosts_count=len(members),
            started_at=self.client.now(),
            read_only=read_only,
        )
        with hand_record.recorded(self.client, instance, note) as ending:
            self.show(f"correlation {self.correlation_id}")
            yield ending


@contextlib.contextmanager
def hand(
    settings: Settings, why: str, show: Callable[[str], None], *, as_service_account: bool = False
) -> Iterator[Hand]:
    """The person whose token is set. RequestError without a token, unless the service account is to stand in."""
    why = hand_record.reason(why)
    if settings.operator_token is None and not as_service_account:
        raise RequestError(NO_PERSON)
    with Client(settings, person=not as_service_account) as client:
        yield Hand(client, why, show, str(uuid.uuid4()), hand_record.caller(client))
