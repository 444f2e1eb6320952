"""Reads the answer of package policy: the source of an app's packages. Pure.

The answer becomes lines of a host's package sources, so each field has one strict form, and an answer with a wrong
field is refused as a whole. Anything but a plain `allow` is treated as deny.
"""

import base64
import binascii
import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from runner.intent.addresses import HOSTNAME
from runner.intent.errors import IntentError, first_problem
from runner.model.platform import Resolution

KEY_BYTES, REASON_CHARS = 65536, 300
MISSING = "missing"  # the platform has no such call
APT = "apt"  # the only type of source that is served; a source without a type is one
_URI = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~+-]+)*/?")
_ARMOR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?:[A-Za-z]+:[^\r\n]*\r?\n)*[ \t]*\r?\n"
    r"([A-Za-z0-9+/=\r\n]+?)(?:\r?\n=[A-Za-z0-9+/]{4})?\r?\n-----END PGP PUBLIC KEY BLOCK-----\s*"
)
_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def _allowed_uri(uri: str) -> str:
    """https, or http to a literal private address: the address of a name can change."""
    if len(uri) > 512 or not _URI.fullmatch(uri) or ".." in uri:
        raise ValueError("not a plain http or https address: user, query and special characters are not allowed")
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if (parts.port or 80) > 65535:
        raise ValueError("the port is out of range (1 to 65535)")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not HOSTNAME.fullmatch(host):
            raise ValueError("not a host name") from None
        if parts.scheme != "https":
            raise ValueError("http is for private addresses only: use https") from None
        return uri
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise ValueError("not an address that serves packages")
    if parts.scheme != "https" and not address.is_private:
        raise ValueError("http is for private addresses only: use https")
    return uri


def _public_key(text: str) -> str:
    """A public key in ASCII armor or base64, as base64 of its bytes. Other text of the armor is dropped."""
    found = _ARMOR.fullmatch(text)
    body = "".join((found[1] if found else text).split())
    try:
        key = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("neither an armored public key nor base64 of one") from None
    # The first packet of a transferable public key is tag 6, in the old form or the new.
    if not 32 <= len(key) <= KEY_BYTES or not (key[0] & 0xFC == 0x98 or key[0] == 0xC6):
        raise ValueError("not an OpenPGP public key, or too large for one")
    return base64.b64encode(key).decode()


def _suite_name(text: str) -> str:
    if ".." in text or "//" in text or text.endswith("/"):
        raise ValueError("not the name of a suite")
    return text


class Source(BaseModel):
    """An apt source. Its key is required, because the connection does not prove where packages come from."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    uri: Annotated[str, AfterValidator(_allowed_uri)]
    suite: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$"), AfterValidator(_suite_name)]
    components: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]] = Field(
        min_length=1, max_length=8
    )
    signing_key: Annotated[str, StringConstraints(max_length=2 * KEY_BYTES), AfterValidator(_public_key)]
    credential_id: Annotated[UUID, Field(strict=False)] | None = None

    def terms(self) -> dict[str, Any]:
        """The variables of hosts. They fetch the credential itself over the secrets socket."""
        return self.model_dump(exclude={"credential_id"}) | {"private": self.credential_id is not None}


def read(resolution: Resolution) -> Source | None:
    """The source to use, or None for the host's own; IntentError for anything but a clear allow."""
    rule, reason = rule_of(resolution), _text(resolution.rule.get("reason"))
    if resolution.decision == "deny":
        scope = resolution.rule.get("scope")
        named = f"{scope} rule {rule}" if scope in ("global", "tenant", "project") else f"rule {rule}"
        raise IntentError(
            "artifact_denied",
            f"{named} denies this instance its packages: {reason}. Nothing was touched. Have the rule changed,"
            " or request what it allows; then request it again",
        )
    if resolution.decision == MISSING:
        raise IntentError(
            "artifact_policy_missing",
            "the platform has no artifact policy that could say where packages may come from. If that"
            " is intended, set GPUAAS_ARTIFACT_POLICY=none, and the hosts' own package sources are used",
        )
    if resolution.decision != "allow":
        raise IntentError(
            "artifact_decision_unknown",
            f"policy answered {_text(resolution.decision)!r} by rule {rule}, which is neither allow nor deny, and is"
            " treated as deny",
        )
    if resolution.source is None:
        return None
    kind = resolution.source.get("type")
    if kind not in (None, APT):
        raise IntentError(
            "artifact_source_unsupported",
            f"rule {rule} names a package source of type {_text(kind)!r}. This app installs Debian packages from an apt"
            " source and from no other: have the rule name one",
        )
    try:
        return Source.model_validate(resolution.source)
    except ValidationError as error:
        problem = f"the package source that rule {rule} names cannot be used: {first_problem(error)}. Have it corrected"
        raise IntentError("artifact_source_invalid", problem) from None


def rule_of(resolution: Resolution) -> str:
    """The name of the rule, if it is valid."""
    named = resolution.rule.get("id")
    return named if isinstance(named, str) and _RULE.fullmatch(named) else "without a name"


def _text(value: object) -> str:
    text = " ".join(str(value or "no reason given").split())
    return text if len(text) <= REASON_CHARS else text[:REASON_CHARS] + "..."
