"""Users of a cluster, declared as a person does it."""

import json
from pathlib import Path
from typing import Any

from tests.commands import ends
from tests.e2e.cluster import Cluster
from tests.runner_process import answer


def declare_users(cluster: Cluster, directory: Path, users: list[dict[str, Any]]) -> None:
    """Another list of users, which the next tick carries out."""
    listed = directory / "users.json"
    listed.write_text(json.dumps(users))
    answer(cluster.variables, "configure", cluster.instance_id, "--users", str(listed))
    ends(cluster.run(), 0)
    detail = cluster.controller()["adapter_detail"]
    assert not detail["config_refused"], detail["config_refused"]
