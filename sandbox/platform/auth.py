"""Authentication: signing keys, tokens, service accounts and their keys, operators."""

import hashlib
import hmac
import json
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import jwt

from sandbox.platform import clock
from sandbox.platform.errors import ApiError
from sandbox.platform.store import Doc, Tx

ISSUER = "gpuaas-sandbox"
AUDIENCE = "gpuaas-api"
DEFAULT_TTL_SECONDS = 900
# A token has the claim of the one that its principal belongs to.
PLACES = ("project_id", "shared_runtime_id")


SERVICE_ACCOUNT, RUNTIME_OPERATOR = "service_account", "shared_runtime_operator"
ADMINISTRATOR, MEMBER = "tenant_administrator", "project_member"


@dataclass(frozen=True)
class Principal:
    """A person or a machine identity: of one project, of one shared runtime, or of the whole tenant."""

    id: str
    actor_type: str
    org_id: str
    project_id: str | None
    action_keys: frozenset[str]
    shared_runtime_id: str | None = None

    @property
    def kind(self) -> str:
        """As the contract names callers."""
        if self.actor_type == "user":
            return ADMINISTRATOR if self.project_id is None else MEMBER
        return self.actor_type

    @property
    def is_adapter(self) -> bool:
        return self.actor_type in (SERVICE_ACCOUNT, RUNTIME_OPERATOR)

    def as_actor(self) -> Doc:
        return {"actor_type": self.actor_type, "id": self.id}


def digest(secret: str) -> str:
    """Secrets that are only compared are kept as digests. All of them are random, so a plain SHA-256 is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_ttl(tx: Tx) -> int:
    return int(tx.setting("token_ttl_seconds", str(DEFAULT_TTL_SECONDS)))


def rotate_signing_key(tx: Tx) -> str:
    """Sign with a new key from now on. The former key verifies until the last token that it signed has expired."""
    until = clock.stamp(clock.now() + timedelta(seconds=token_ttl(tx)))
    tx.sql.execute("UPDATE signing_keys SET valid_until=? WHERE valid_until IS NULL", (until,))
    kid = str(uuid.uuid4())
    tx.sql.execute("INSERT INTO signing_keys VALUES (?,?,?,NULL)", (kid, secrets.token_urlsafe(48), clock.stamp()))
    return kid


def mint(tx: Tx, principal: Principal, ttl_seconds: int) -> str:
    row = tx.sql.execute("SELECT kid, secret FROM signing_keys WHERE valid_until IS NULL").fetchone()
    issued = clock.now()
    claims = {
        "sub": principal.id,
        "actor_type": principal.actor_type,
        "org_id": principal.org_id,
        **{name: value for name in PLACES if (value := getattr(principal, name)) is not None},
        "scope": " ".join(sorted(principal.action_keys)),
        "aud": AUDIENCE,
        "iss": ISSUER,
        "iat": issued,
        "exp": issued + timedelta(seconds=ttl_seconds),
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, row[1], algorithm="HS256", headers={"kid": row[0]})


def find_principal(tx: Tx, principal_id: str) -> Principal | None:
    row = tx.sql.execute(
        "SELECT id, actor_type, org_id, project_id, action_keys, shared_runtime_id"
        " FROM principals LEFT JOIN runtime_operators ON principal_id=id WHERE id=? AND active=1",
        (principal_id,),
    ).fetchone()
    return Principal(row[0], row[1], row[2], row[3] or None, frozenset(json.loads(row[4])), row[5]) if row else None


def authenticate(tx: Tx, header: str | None) -> Principal:
    """The principal of a bearer token. Action keys come from the database, so a change takes effect at once."""
    if not header:
        raise ApiError(401, "token_missing", "send Authorization: Bearer <token>")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise ApiError(401, "token_invalid", "the Authorization header is not a bearer token")
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        row = tx.sql.execute(
            "SELECT secret FROM signing_keys WHERE kid=? AND (valid_until IS NULL OR valid_until>?)",
            (kid if isinstance(kid, str) else "", clock.stamp()),
        ).fetchone()
        if row is None:
            raise ApiError(401, "token_invalid", "the token is signed with a key that is unknown or retired")
        claims = jwt.decode(token, row[0], algorithms=["HS256"], audience=AUDIENCE, issuer=ISSUER)
    except jwt.ExpiredSignatureError:
        raise ApiError(401, "token_expired", "the token has expired; fetch a new one") from None
    except (jwt.InvalidAudienceError, jwt.InvalidIssuerError):
        raise ApiError(401, "token_scope_invalid", "the token is not meant for this API") from None
    except (jwt.PyJWTError, UnicodeError):
        raise ApiError(401, "token_invalid", "the token cannot be verified") from None
    principal = find_principal(tx, str(claims["sub"]))
    if principal is None:
        raise ApiError(401, "token_invalid", "the token's principal does not exist or is disabled")
    return principal


def exchange(tx: Tx, key_id: str, client_secret: str, is_meant: Callable[[Principal], bool]) -> Doc:
    """A token for the key of the principal that is meant. The error does not reveal which part was wrong."""
    row = tx.sql.execute(
        "SELECT secret_hash, principal_id FROM account_keys WHERE key_id=? AND revoked=0", (key_id,)
    ).fetchone()
    principal = find_principal(tx, row[1]) if row is not None else None
    if principal is None or not is_meant(principal) or not hmac.compare_digest(row[0], digest(client_secret)):
        raise ApiError(401, "token_invalid", "the identity, key or secret is wrong, or the key is revoked")
    ttl = token_ttl(tx)
    return {"access_token": mint(tx, principal, ttl), "token_type": "Bearer", "expires_in": ttl}


def create_principal(
    tx: Tx,
    actor_type: str,
    org_id: str,
    name: str,
    keys: list[str],
    *,
    project_id: str | None = None,
    shared_runtime_id: str | None = None,
) -> Principal:
    principal = Principal(str(uuid.uuid4()), actor_type, org_id, project_id, frozenset(keys), shared_runtime_id)
    tx.sql.execute(
        "INSERT INTO principals (id, actor_type, org_id, project_id, name, action_keys) VALUES (?,?,?,?,?,?)",
        (principal.id, actor_type, org_id, project_id or "", name, json.dumps(sorted(keys))),
    )
    if shared_runtime_id is not None:
        tx.sql.execute("INSERT INTO runtime_operators VALUES (?,?)", (principal.id, shared_runtime_id))
    return principal


def create_account_key(tx: Tx, account_id: str) -> Doc:
    key_id, client_secret = f"key-{uuid.uuid4()}", secrets.token_urlsafe(32)
    tx.sql.execute(
        "INSERT INTO account_keys (key_id, principal_id, secret_hash) VALUES (?,?,?)",
        (key_id, account_id, digest(client_secret)),
    )
    return {"key_id": key_id, "client_secret": client_secret}
