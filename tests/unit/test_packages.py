"""The platform decides where packages come from: it is asked before a play that installs, and a refusal is final."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.host import package_source as source_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.act import package_policy
from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.intent.package_source import Source
from runner.loop.dry_run import dry_run
from runner.model.errors import Forbidden
from runner.model.plan import Finish, Plan, Play, Resolve, SetInstance, SetMember, SkipPlay, shown
from runner.model.platform import Resolution
from runner.model.world import World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.guards.packages import apply_package_policy
from tests.unit import hostile
from tests.unit.lifecycle import serving
from tests.unit.package_answers import DENY, KEY, MISSING, SOURCE, allowing, asking
from tests.unit.test_desired_config import running
from tests.unit.test_upgrading import a_cluster, asked
from tests.unit.worlds import add, controller, of_kind, settle, world

UNKNOWN = Resolution(decision="maybe", rule={"id": "who-knows"})
NOES = [
    (DENY, "artifact_denied"),
    (UNKNOWN, "artifact_decision_unknown"),
    (MISSING, "artifact_policy_missing"),
    (Resolution(decision="allow", source={**SOURCE, "signing_key": None}), "artifact_source_invalid"),
    (Resolution(decision="allow", source={}), "artifact_source_invalid"),
    (Resolution(decision="allow", source={**SOURCE, "type": "oci"}), "artifact_source_unsupported"),
    (Resolution(decision="allow", source={"type": "blob", "url": "https://a/b"}), "artifact_source_unsupported"),
    (Resolution(decision="allow", source={**SOURCE, "type": 7}), "artifact_source_unsupported"),
    (Resolution(decision="ALLOW"), "artifact_decision_unknown"),
]
thorough = settings(derandomize=True, max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def deploying(**changes: Any) -> World:
    return world(operations=(add(2, 3),), **changes)


def joining(**changes: Any) -> World:
    """A cluster that runs, and a worker that is to join it."""
    return running({}, serving(3)).later(operations=(add(4),), **changes)


# -- asking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [deploying, joining, lambda **more: a_cluster(asked("upgrade")).later(**more)])
def test_policy_is_asked_once_before_a_play_that_installs(start: Any) -> None:
    _, steps, play = settle(start(packages=None), decide)
    assert play is not None and len(of_kind(steps, Resolve)) == 1
    _, steps, again = settle(start(packages=Resolution(decision="allow")), decide)
    assert again is not None and of_kind(steps, Resolve) == [], "policy is asked once a tick"


def test_policy_is_not_asked_where_nothing_is_installed() -> None:
    idle = running({}, serving(3)).later(packages=None)
    assert of_kind(settle(idle, decide)[1], Resolve) == []


def test_a_plan_shows_that_policy_is_asked_and_what_follows_a_deny() -> None:
    rows = [shown(step)["step"] for step in dry_run(deploying(packages=None), SLURM)]
    assert "ask policy for a package source" in rows and rows[-1] == "run playbooks/deploy.yml"
    rows = [shown(step)["step"] for step in dry_run(deploying(packages=DENY), SLURM)]
    assert "do not run playbooks/deploy.yml" in rows and "run playbooks/deploy.yml" not in rows


@pytest.mark.parametrize("answer", [allowing(), Resolution(decision="allow"), DENY, Resolution(decision="perhaps")])
def test_a_platform_that_answers_proves_the_setting_none_wrong(answer: Resolution) -> None:
    assert package_policy.resolve(*asking(answer, "platform")) == answer
    with pytest.raises(package_policy.PolicyPresent, match="GPUAAS_ARTIFACT_POLICY is none") as refused:
        package_policy.resolve(*asking(answer, "none"))
    assert refused.value.code == "artifact_policy_present"


def test_where_the_platform_has_no_policy_the_setting_none_is_obeyed() -> None:
    assert package_policy.resolve(*asking(MISSING, "none")) == Resolution(decision="allow")
    assert package_policy.resolve(*asking(MISSING, "platform")) == MISSING, "which is a no"


def test_a_question_that_fails_is_an_error_also_under_the_setting_none() -> None:
    for setting in ("none", "platform"):
        with pytest.raises(Forbidden):
            package_policy.resolve(*asking(Forbidden("403"), setting))


# -- a no --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "code"), NOES)
def test_any_answer_but_allow_fails_a_deploy_without_a_play(answer: Resolution, code: str) -> None:
    end, steps, play = settle(deploying(packages=answer), decide)
    assert play is None and len(of_kind(steps, SkipPlay)) == 1
    assert {member.status for member in end.members} == {"failed"}
    for member in end.members:
        error = member.adapter_detail["last_adapter_error"]
        assert (error["code"], error["class"]) == (code, "intervention")
    assert end.instance.status == "failed" and end.operations == ()
    assert of_kind(steps, SetInstance)[-1].detail["reasons"][0]["code"] == code
    assert of_kind(settle(end, decide)[1], SkipPlay) == [], "it is final"


def test_a_deny_fails_only_the_joining_worker_and_names_the_rule() -> None:
    start = joining(packages=DENY)
    end, steps, play = settle(start, decide)
    assert play is None
    (failed,) = [one for one in end.members if one.status == "failed"]
    message = failed.adapter_detail["last_adapter_error"]["message"]
    assert "tenant rule no-slurm" in message and "frozen until Monday" in message
    assert [step.member.id for step in of_kind(steps, SetMember)] == [failed.id]
    (finished,) = of_kind(steps, Finish)
    assert finished.status == "failed" and finished.error["code"] == "artifact_denied"
    assert end.instance.status == "running"
    assert next(one for one in end.members if one.component_key == "controller").status == "ready"


@pytest.mark.parametrize("verb", ["upgrade", "rollback"])
def test_a_deny_ends_a_move_to_another_version_before_it_begins(verb: str) -> None:
    end, steps, play = settle(a_cluster(asked(verb)).later(packages=DENY), decide)
    assert play is None or play.playbook == "observe"
    (finished,) = of_kind(steps, Finish)
    assert (finished.status, finished.error["code"]) == ("failed", "artifact_denied")
    assert {one.status for one in end.members} == {"ready"}


def test_hosts_that_have_slurm_are_started_under_a_deny_but_get_nothing_installed() -> None:
    """A cluster that runs is not taken down by a rule that came later."""
    repair = Play("put right what drifted", "add_worker", (controller(status="ready"), serving(3)))
    play = apply_package_policy(world(packages=DENY), Plan((repair,))).play
    assert play is not None and play.terms == {"slurm_package_source": {"denied": "rule no-slurm"}}


# -- a yes -------------------------------------------------------------------------------------------------------


def test_an_allowed_source_goes_to_the_play_and_its_credential_does_not() -> None:
    _, _, play = settle(joining(packages=allowing()), decide)
    assert play is not None and play.package_credential == UUID(int=77)
    sent = play.terms["slurm_package_source"]
    assert sent == {
        "uri": SOURCE["uri"],
        "suite": "trixie",
        "components": ["main"],
        "signing_key": KEY,
        "private": True,
    }
    assert str(UUID(int=77)) not in str(play.terms)


def test_an_allow_without_a_source_changes_nothing() -> None:
    _, _, play = settle(joining(), decide)
    assert play is not None and (play.terms, play.package_credential) == ({}, None)


@pytest.mark.parametrize(
    "uri",
    [
        "https://packages.example.org",
        "https://packages.example.org:8443/a/b.c/",
        "http://10.1.2.3:8080/debian",
        "http://[fd00::7]/debian",
        "http://127.0.0.1:3142/debian",
    ],
)
def test_addresses_one_may_use(uri: str) -> None:
    assert Source.model_validate(SOURCE | {"uri": uri}).uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "http://packages.example.org/slurm",  # a name, in clear
        "http://8.8.8.8/slurm",
        "https://user:password@packages.example.org/slurm",
        "https://packages.example.org/slurm?token=1",
        "https://packages.example.org/a b",
        "https://packages.example.org/../x",
        "https://packages.example.org/x\nSuites: evil",
        "https://packages.example.org:99999/",
        "http://169.254.169.254/latest",
        "https://0.0.0.0/",
        "file:///etc/apt",
        "copy:/etc",
        "mirror+file:/etc",
        "ftp://10.1.2.3/",
        "https://[::1%25eth0]/",
        "https://-x/",
    ],
)
def test_addresses_one_may_not(uri: str) -> None:
    with pytest.raises(IntentError, match="uri"):
        package_source.read(allowing(uri=uri))


FIELDS = st.sampled_from(sorted(SOURCE))


@thorough
@given(st.dictionaries(FIELDS, hostile.anything | st.lists(hostile.text, max_size=3), max_size=5))
def test_a_hostile_source_is_refused_or_stays_on_its_lines(changes: dict[str, Any]) -> None:
    try:
        source = package_source.read(allowing(**changes))
    except IntentError as refused:
        assert refused.code == "artifact_source_invalid" and len(refused.message) < 600
        return
    assert source is not None
    terms = source.terms()
    assert not re.search(r"\{\{|\{%|\{#", str(terms)), "no template reaches Ansible"
    text = source_files.sources_text(terms, Path("/run/key"))
    assert re.fullmatch(
        r"Types: deb\nURIs: https?://[^\s@?#]+\nSuites: [A-Za-z0-9._/-]+\nComponents: [A-Za-z0-9._ -]+\n"
        r"Signed-By: /run/key\n",
        text,
    )
    pins = source_files.pins_text(terms)
    assert [line.partition(":")[0] for line in pins.splitlines() if line] == ["Package", "Pin", "Pin-Priority"] * 3
    assert source_files.login_text(terms, "me:secret").count("\n") == 1


@thorough
@given(st.dictionaries(st.sampled_from(["id", "scope", "reason", "effect"]), hostile.anything), hostile.text)
def test_a_hostile_rule_is_a_no_that_fits_its_record(rule: dict[str, Any], decision: str) -> None:
    with pytest.raises(IntentError) as refused:
        package_source.read(Resolution(decision=decision, rule=rule))
    assert len(refused.value.message) < 600 and "\n" not in refused.value.message
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._: -]*", package_source.rule_of(Resolution(decision="deny", rule=rule)))
