"""SSH keys of the fleet: one pair for the login, and one host key per host."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 pair in OpenSSH's formats. The private part is not in the repr."""

    public: str
    private: str = field(repr=False)

    @classmethod
    def generate(cls) -> "KeyPair":
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, private: bytes) -> "KeyPair":
        key = serialization.load_ssh_private_key(private, password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("the fleet's login key is not an ed25519 key")
        return cls._of(key)

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> "KeyPair":
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        return cls(public=public.decode(), private=private.decode())
