"""Every write of a project's cluster from its deploy to its end, decided in memory; ids by the order of their coming.

`python -m tests.unit.project_writes` writes the fixture. It was made by the version before shared runtimes, and changes
only with a change of project mode that is meant.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

from runner.model.plan import Announce, Claim, Finish, NewMember, Play, SetInstance, SetMember
from runner.slurm import host_vars
from tests.unit import worlds
from tests.unit.fake_slurm import FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, tick
from tests.unit.worlds import add, world

FIXTURE = Path(__file__).parent / "fixtures" / "project_writes.json"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<=worker-)[0-9a-f]{8}|w[0-9]+")
USERS = {"users": [{"name": "ann", "uid": 2000}]}


def _written(step: Any) -> Any:
    match step:
        case SetMember(status=status, detail=detail):
            return ["member", status, detail]
        case Claim(status=status, hold=hold):
            return ["claim", status, hold]
        case SetInstance(status=status, health=health, detail=detail, access=access):
            return ["instance", status, health, detail, access]
        case NewMember(component_key=key, detail=detail):
            return ["new", key, detail]
        case Finish(status=status, result=result, error=error):
            return ["finish", status, result, error]
        case Announce(kind=kind, data=data):
            return ["event", kind, data]
    return None


def _played(step: Play) -> Any:
    return ["play", step.playbook, sorted(one.component_key for one in step.members), step.work, step.terms]


def writes() -> list[Any]:
    """Deploy with two workers, a look, users, a drain, a stop, a start and a decommission."""
    # The order of ids decides the order of some writes, whichever tests ran before.
    worlds._ids = itertools.count(2**20)
    slurm, found = FakeSlurm(), list[Any]()
    now = world(operations=(add(2, 3),))

    def go(count: int = 3) -> None:
        nonlocal now
        for _ in range(count):
            now, steps, plays = tick(now, slurm)
            found.extend(each for step in steps if (each := _written(step)) is not None)
            for play in plays:
                found.append(_played(play))
                shared = host_vars.variables(now.instance, list(play.members), list(now.members)).shared
                found.append(["variables", shared])

    go()
    now = now.later(instance=now.instance.model_copy(update={"config": USERS}))
    go()
    worker = next(one for one in now.members if one.component_key == "worker")
    now = now.later(operations=(ask("drain", worker),))
    go()
    for verb in ("stop", "start", "decommission"):
        now = now.later(instance_operations=(ask_whole(verb),))
        go()
    return found


def as_text(found: list[Any]) -> str:
    """JSON with ids replaced by the order of their first mention."""
    names: dict[str, str] = {}
    text = json.dumps(found, indent=1, sort_keys=True, default=str)
    return _ID.sub(lambda one: names.setdefault(one[0], f"id-{len(names) + 1}"), text) + "\n"


if __name__ == "__main__":
    FIXTURE.write_text(as_text(writes()))
