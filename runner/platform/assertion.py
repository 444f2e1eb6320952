"""A login by an assertion that the account signs, in place of a secret that it sends."""

import time
import uuid
from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from runner.model.errors import Rejected
from runner.platform import secret_files
from runner.platform.secret_files import SecretFileError

_ALGORITHMS = {RSAPrivateKey: "RS256", EllipticCurvePrivateKey: "ES256", Ed25519PrivateKey: "EdDSA"}


def signed(key_file: Path, account: str, key_id: str, audience: str) -> str:
    """A JWT that says who we are, signed with the account's private key and valid for a minute."""
    now = int(time.time())
    claims = {"iss": account, "sub": account, "aud": audience, "iat": now, "exp": now + 60, "jti": uuid.uuid4().hex}
    try:
        key = load_pem_private_key(secret_files.content("GPUAAS_PRIVATE_KEY_FILE", key_file), None)
        algorithm = next(name for kind, name in _ALGORITHMS.items() if isinstance(key, kind))
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": key_id})  # type: ignore[arg-type]
    except SecretFileError as error:
        raise Rejected(str(error), code="token_invalid") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, StopIteration, jwt.PyJWTError):
        # The library would quote a part of the key.
        raise Rejected(
            "GPUAAS_PRIVATE_KEY_FILE is not a readable private key in PEM without a passphrase: RSA, EC P-256 or"
            " Ed25519. Check the file",
            code="token_invalid",
        ) from None
