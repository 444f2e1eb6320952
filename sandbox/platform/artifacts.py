"""Artifact policy: the source from which an instance or a shared runtime may install an artifact.

Overlays only narrow: a deny at any level wins over an allow at any level. Of several denies the most global is named;
of several allows the closest (project, then tenant, then global) gives the source. Without a rule the answer is deny.
"""

import json
from fnmatch import fnmatchcase

from sandbox.platform import owners
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.listing import page_of
from sandbox.platform.store import Doc, Tx

KIND = "artifact_resolution"
CLOSENESS = {"project": 0, "tenant": 1, "global": 2}
NO_RULE: Doc = {
    "id": "default-deny",
    "scope": "global",
    "effect": "deny",
    "reason": "no rule allows this artifact",
    "source": None,
}


def put_rule(tx: Tx, rule: Doc) -> None:
    source = json.dumps(rule["source"]) if rule.get("source") is not None else None
    tx.sql.execute(
        "INSERT OR REPLACE INTO artifact_rules VALUES (?,?,?,?,?,?,?)",
        (
            rule["id"],
            rule["scope"],
            rule.get("owner_id") or "",
            rule["effect"],
            rule["artifact"],
            rule.get("reason"),
            source,
        ),
    )


def decide(tx: Tx, org_id: str, project_id: str, artifact: str) -> Doc:
    owners = {"global": "", "tenant": org_id, "project": project_id}
    rules = [
        {
            "id": row[0],
            "scope": row[1],
            "effect": row[2],
            "reason": row[3],
            "source": json.loads(row[4]) if row[4] else None,
        }
        for row in tx.sql.execute(
            "SELECT id, scope, effect, reason, source, owner_id, artifact FROM artifact_rules ORDER BY id"
        )
        if owners[row[1]] == row[5] and fnmatchcase(artifact, row[6])
    ]
    by_closeness = sorted(rules, key=lambda rule: CLOSENESS[rule["scope"]])
    denied = [rule for rule in reversed(by_closeness) if rule["effect"] == "deny"]
    return (denied or by_closeness or [NO_RULE])[0]


@operation("listArtifactResolutions", "listRuntimeArtifactResolutions")
def list_resolutions(call: Call) -> Reply:
    return page_of(call, KIND, etags=False)


@operation("createArtifactResolution", "createRuntimeArtifactResolution")
def resolve(call: Call) -> Reply:
    body, owner = call.given.body, call.current.doc
    rule = decide(call.tx, owner["org_id"], owners.project_of(owner), body["artifact"])
    row = owners.insert_below(
        call.tx,
        owner,
        KIND,
        {
            "artifact": body["artifact"],
            **{name: body.get(name) for name in ("version", "os", "arch")},
            "decision": rule["effect"],
            "rule": {name: rule[name] for name in ("id", "scope", "effect", "reason")},
            "source": rule["source"] if rule["effect"] == "allow" else None,
            "correlation_id": call.correlation_id,
        },
    )
    changes = {"artifact": body["artifact"], "decision": rule["effect"], "rule": rule["id"]}
    return Reply(row.doc, 201, touched=(KIND, row.doc["id"]), changes=changes)
