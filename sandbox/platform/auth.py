"""Authentication: signing keys, tokens, service accounts and their keys, operators."""

import hashlib
import hmac
import json
import secrets
import uuid
from dataclasses import dataclass
from datetime import timedelta

import jwt

from sandbox.platform import clock
from sandbox.platform.errors import ApiError
from sandbox.platform.store import Doc, Tx

ISSUER = "gpuaas-sandbox"
AUDIENCE = "gpuaas-api"
DEFAULT_TTL_SECONDS = 900


@dataclass(frozen=True)
class Principal:
    id: str
    actor_type: str
    org_id: str
    project_id: str
    action_keys: frozenset[str]

    @property
    def is_service_account(self) -> bool:
        return self.actor_type == "service_account"

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
        "project_id": principal.project_id,
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
        "SELECT id, actor_type, org_id, project_id, action_keys FROM principals WHERE id=? AND active=1",
        (principal_id,),
    ).fetchone()
    return Principal(row[0], row[1], row[2], row[3], frozenset(json.loads(row[4]))) if row else None


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


def exchange(tx: Tx, account_id: str, key_id: str, client_secret: str) -> Doc:
    """A token for a service account's key. The error does not reveal which part of the login was wrong."""
    row = tx.sql.execute(
        "SELECT secret_hash FROM account_keys WHERE key_id=? AND principal_id=? AND revoked=0",
        (key_id, account_id),
    ).fetchone()
    principal = find_principal(tx, account_id)
    if (
        row is None
        or principal is None
        or not principal.is_service_account
        or not hmac.compare_digest(row[0], digest(client_secret))
    ):
        raise ApiError(401, "token_invalid", "service account, key or secret is wrong, or the key is revoked")
    ttl = token_ttl(tx)
    return {"access_token": mint(tx, principal, ttl), "token_type": "Bearer", "expires_in": ttl}


def create_principal(tx: Tx, actor_type: str, org_id: str, project_id: str, name: str, keys: list[str]) -> Principal:
    principal = Principal(str(uuid.uuid4()), actor_type, org_id, project_id, frozenset(keys))
    tx.sql.execute(
        "INSERT INTO principals (id, actor_type, org_id, project_id, name, action_keys) VALUES (?,?,?,?,?,?)",
        (principal.id, actor_type, org_id, project_id, name, json.dumps(sorted(keys))),
    )
    return principal


def create_account_key(tx: Tx, account_id: str) -> Doc:
    key_id, client_secret = f"key-{uuid.uuid4()}", secrets.token_urlsafe(32)
    tx.sql.execute(
        "INSERT INTO account_keys (key_id, principal_id, secret_hash) VALUES (?,?,?)",
        (key_id, account_id, digest(client_secret)),
    )
    return {"key_id": key_id, "client_secret": client_secret}
