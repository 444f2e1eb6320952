"""The users that a project declares for its cluster, read strictly: they become Unix users with root's help."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST = 500
LOWEST_ID, HIGHEST_ID = 1000, 59999
DEFAULT_ACCOUNT = "default"
# Names that Debian, Slurm, its dependencies or a cloud image use. A name that a host has already, with another number,
# is refused there.
RESERVED = frozenset(
    """
    root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats nobody _apt sshd
    messagebus polkitd tss uuidd syslog adm sudo wheel staff users operator slurm slurmdbd munge mysql mariadb postgres
    ansible ops admin debian ubuntu cloud-user gpuaas nvidia-persistenced
    """.split()  # noqa: SIM905 - a list of fifty strings reads worse
)
_KEY_TYPES = "ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh.com"
# Type, key and a comment: nothing before them, so no option of sshd's (command=, environment=) comes along.
KEY = re.compile(rf"(?:{_KEY_TYPES}) [A-Za-z0-9+/]{{40,2000}}={{0,2}}(?: [A-Za-z0-9_.@+=:-]{{1,100}})?")


class User(BaseModel):
    """One declared user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")
    uid: int = Field(ge=LOWEST_ID, le=HIGHEST_ID, strict=True)
    gid: int | None = Field(None, ge=LOWEST_ID, le=HIGHEST_ID, strict=True)
    account: str = Field(DEFAULT_ACCOUNT, pattern=r"^[a-z][a-z0-9_]{0,31}$")
    shell: Literal["/bin/bash", "/bin/sh", "/usr/sbin/nologin"] = "/bin/bash"
    ssh_keys: list[str] | None = Field(None, max_length=20)

    @field_validator("name")
    @classmethod
    def _free(cls, name: str) -> str:
        if name in RESERVED or name.startswith("systemd-"):
            raise ValueError(f"{name} is a reserved name of the system")
        return name

    @field_validator("account")
    @classmethod
    def _not_roots(cls, account: str) -> str:
        if account == "root":
            raise ValueError("the account root is Slurm's own")
        return account

    @field_validator("ssh_keys")
    @classmethod
    def _keys(cls, keys: list[str] | None) -> list[str] | None:
        for key in keys or []:
            if not KEY.fullmatch(key):
                raise ValueError("an ssh key is not a public key of the form TYPE KEY [COMMENT]")
        return keys

    @property
    def group_id(self) -> int:
        """A group of the user's own name, with the user's number unless `gid` is set."""
        return self.uid if self.gid is None else self.gid


def variables(users: Sequence[User]) -> dict[str, Any]:
    """For plays: the users of every host, their accounts, and their keys for logins on the controller."""
    listed = sorted(users, key=lambda user: user.name)
    return {
        "slurm_users": [{"name": one.name, "uid": one.uid, "gid": one.group_id, "shell": one.shell} for one in listed],
        "slurm_accounts": [{"name": one.name, "account": one.account} for one in listed],
        "slurm_user_keys": {one.name: one.ssh_keys for one in listed if one.ssh_keys is not None},
    }


def check_unique(users: Sequence[User]) -> None:
    """Two users must not share a name or a number, nor a group."""
    for what, values in (
        ("name", [user.name for user in users]),
        ("uid", [user.uid for user in users]),
        ("gid", [user.group_id for user in users]),
    ):
        twice = [value for value, times in Counter(values).items() if times > 1]
        if twice:
            raise ValueError(f"two users have the {what} {twice[0]}")
