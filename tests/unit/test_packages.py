"""Where packages come from is the platform's word: asked before a play that installs, and no is no."""

import base64
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import yaml
from ansible.module_utils.host import package_source as source_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.act import package_policy
from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.intent.package_source import Source
from runner.loop.dry_run import dry_run
from runner.model.app import App
from runner.model.errors import Forbidden, PlatformError, RequestError, Unavailable
from runner.model.plan import Finish, Plan, Play, Resolve, SetInstance, SetMember, SkipPlay, shown
from runner.model.platform import AppInstance, Resolution
from runner.model.world import World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.guards.packages import apply_package_policy
from tests.unit import hostile
from tests.unit.lifecycle import serving
from tests.unit.test_desired_config import running
from tests.unit.test_upgrading import a_cluster, asked
from tests.unit.worlds import add, controller, instance, of_kind, settle, world

KEY = base64.b64encode(b"\x99\x01\x0d\x04" + bytes(range(200))).decode()
ARMORED = "\n".join(
    (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        "Comment: {{ 7*7 }}",
        "",
        KEY[:64],
        KEY[64:],
        "=abcd",
        "-----END PGP PUBLIC KEY BLOCK-----",
        "",
    )
)
SOURCE: dict[str, Any] = {
    "uri": "https://packages.example.org/slurm",
    "suite": "trixie",
    "components": ["main"],
    "signing_key": ARMORED,
    "credential_id": str(UUID(int=77)),
}
DENY = Resolution(decision="deny", rule={"id": "no-slurm", "scope": "tenant", "reason": "frozen until Monday"})
UNKNOWN = Resolution(decision="maybe", rule={"id": "who-knows"})
MISSING = Resolution(decision="missing")
NOES = [
    (DENY, "artifact_denied"),
    (UNKNOWN, "artifact_decision_unknown"),
    (MISSING, "artifact_policy_missing"),
    (Resolution(decision="allow", source={**SOURCE, "signing_key": None}), "artifact_source_invalid"),
    (Resolution(decision="allow", source={}), "artifact_source_invalid"),
    (Resolution(decision="ALLOW"), "artifact_decision_unknown"),
]
thorough = settings(derandomize=True, max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def allowing(**changes: Any) -> Resolution:
    return Resolution(decision="allow", rule={"id": "yes"}, source=SOURCE | changes)


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
    quiet = running({}, serving(3)).later(packages=None)
    assert of_kind(settle(quiet, decide)[1], Resolve) == []


def test_a_plan_shows_that_policy_is_asked_and_what_follows_a_no() -> None:
    rows = [shown(step)["step"] for step in dry_run(deploying(packages=None), SLURM)]
    assert "ask policy for a package source" in rows and rows[-1] == "run playbooks/deploy.yml"
    rows = [shown(step)["step"] for step in dry_run(deploying(packages=DENY), SLURM)]
    assert "do not run playbooks/deploy.yml" in rows and "run playbooks/deploy.yml" not in rows


class Answering:
    """The one call of the platform that matters here."""

    def __init__(self, answer: Resolution | PlatformError) -> None:
        self._answer = answer

    def resolve_packages(self, _instance: AppInstance, artifact: str) -> Resolution:
        assert artifact == SLURM.artifact
        if isinstance(self._answer, PlatformError):
            raise self._answer
        return self._answer


def asking(answer: Resolution | PlatformError, setting: str) -> tuple[Any, Any, App, AppInstance]:
    return Answering(answer), SimpleNamespace(artifact_policy=setting), SLURM, instance()


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


# -- by hand -----------------------------------------------------------------------------------------------------


def by_hand(monkeypatch: pytest.MonkeyPatch, answer: Any, setting: str = "platform", **how: Any) -> tuple[Any, Any]:
    """Variables of a play under exec, and the credential that opens a private source."""
    variables, login = package_policy.for_manual_command(
        *asking(answer, setting), read_only=how.get("read_only", False)
    )
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return package_policy.manual_terms(SLURM, instance()), login


@pytest.mark.parametrize("answer", [DENY, MISSING, Resolution(decision="perhaps"), allowing(uri="ftp://x")])
def test_by_hand_only_an_allow_installs_packages(monkeypatch: pytest.MonkeyPatch, answer: Resolution) -> None:
    terms, login = by_hand(monkeypatch, answer)
    assert set(terms["slurm_package_source"]) == {"denied"} and login is None


def test_by_hand_a_deny_names_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_hand(monkeypatch, DENY)[0] == {"slurm_package_source": {"denied": "rule no-slurm"}}


def test_by_hand_an_allow_gives_its_source_and_its_login_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_hand(monkeypatch, Resolution(decision="allow")) == ({}, None)
    terms, login = by_hand(monkeypatch, allowing(credential_id=str(UUID(int=5))))
    assert login == UUID(int=5) and terms["slurm_package_source"]["private"] is True
    assert "credential_id" not in terms["slurm_package_source"]


def test_by_hand_a_policy_that_cannot_be_asked_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terms, _ = by_hand(monkeypatch, Unavailable("503", code="platform_unreachable"))
    assert "platform_unreachable" in terms["slurm_package_source"]["denied"]


def test_by_hand_the_setting_none_is_refused_where_the_platform_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(package_policy.PolicyPresent):
        by_hand(monkeypatch, DENY, "none")
    assert by_hand(monkeypatch, MISSING, "none") == ({}, None)


def test_by_hand_without_exec_or_for_another_instance_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(package_policy.SOURCE_VARIABLE, raising=False)
    not_asked = {"slurm_package_source": {"denied": package_policy.NOT_ASKED}}
    assert package_policy.manual_terms(SLURM, instance()) == not_asked
    by_hand(monkeypatch, Resolution(decision="allow"))
    other = instance(id=UUID(int=8))
    assert package_policy.manual_terms(SLURM, other) == not_asked
    assert "denied" in by_hand(monkeypatch, allowing(), read_only=True)[0]["slurm_package_source"]


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"instance": "00000000-0000-0000-0000-000000000007"}'])
def test_by_hand_a_forged_answer_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(package_policy.SOURCE_VARIABLE, text)
    with pytest.raises(IntentError, match="use exec"):
        package_policy.manual_terms(SLURM, instance())


def test_by_hand_the_answer_of_policy_cannot_be_overridden_on_the_command_line() -> None:
    package_policy.refuse_override(SLURM, ["ansible-playbook", "playbooks/recover.yml"])
    for term in ("slurm_package_source=null", '{"preflight_package_source": null}'):
        with pytest.raises(RequestError):
            package_policy.refuse_override(SLURM, ["ansible-playbook", "-e", term, "playbooks/deploy.yml"])


def test_the_variable_that_plays_read_is_the_one_that_is_refused() -> None:
    read_by_plays = yaml.safe_load((Path(__file__).parents[2] / "roles/preflight/vars/main.yml").read_text())
    assert SLURM.package_source_variables[0] in read_by_plays[SLURM.package_source_variables[1]]


# -- a no --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "code"), NOES)
def test_whatever_is_no_clear_yes_fails_a_deploy_without_a_play(answer: Resolution, code: str) -> None:
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
    told = play.terms["slurm_package_source"]
    assert told == {
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
    told = source.terms()
    assert not re.search(r"\{\{|\{%|\{#", str(told)), "no template reaches Ansible"
    text = source_files.sources_text(told, Path("/run/key"))
    assert re.fullmatch(
        r"Types: deb\nURIs: https?://[^\s@?#]+\nSuites: [A-Za-z0-9._/-]+\nComponents: [A-Za-z0-9._ -]+\n"
        r"Signed-By: /run/key\n",
        text,
    )
    pins = source_files.pins_text(told)
    assert [line.partition(":")[0] for line in pins.splitlines() if line] == ["Package", "Pin", "Pin-Priority"] * 3
    assert source_files.login_text(told, "me:secret").count("\n") == 1


@thorough
@given(st.dictionaries(st.sampled_from(["id", "scope", "reason", "effect"]), hostile.anything), hostile.text)
def test_a_hostile_rule_is_a_no_that_fits_its_record(rule: dict[str, Any], decision: str) -> None:
    with pytest.raises(IntentError) as refused:
        package_source.read(Resolution(decision=decision, rule=rule))
    assert len(refused.value.message) < 600 and "\n" not in refused.value.message
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._: -]*", package_source.rule_of(Resolution(decision="deny", rule=rule)))
