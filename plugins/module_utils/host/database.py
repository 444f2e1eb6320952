"""Our database and its user in the host's MariaDB: made, checked and dropped by SQL over the server's local socket.

A server that was on the host before us belongs to its owner. It is not configured, not restarted and not stopped, and
a database or user that is there already is not adopted: such a host is refused before its first change.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import INTERVENTION, REPAIRABLE, AdapterError
from .ledger import Ledger
from .packages import installed_versions
from .units import listening, show

DATA = Path("/var/lib/mysql")
SOCKET = Path("/run/mysqld/mysqld.sock")
SERVER = "mariadb"
PACKAGE = "mariadb-server"
PORT = 3306
START_SECONDS = 60
NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
PASSWORD = re.compile(r"[A-Za-z0-9_-]{16,128}")
SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
AT_BOOT = ("enabled", "enabled-runtime", "linked")
# An owner's sql_mode may give quotes and backslashes another meaning.
PLAIN = "SET SESSION sql_mode = '';"
PRESENCE = (
    "SELECT 'database', schema_name FROM information_schema.schemata WHERE schema_name = '{name}';"
    "SELECT 'user', User FROM mysql.user WHERE User = '{user}' AND Host = 'localhost';"
)
NEEDED_PRIVILEGES = ("CREATE", "CREATE USER", "DROP")


@dataclass(frozen=True)
class Server:
    """The host's MariaDB as it is now."""

    installed: bool
    active: bool
    at_boot: bool
    state: str


def look() -> Server:
    unit = show([SERVER]).get(SERVER, {})
    active, at_boot = unit.get("ActiveState", "unknown"), unit.get("UnitFileState", "unknown")
    state = "masked" if unit.get("LoadState") == "masked" else f"{active} and {at_boot}"
    return Server(PACKAGE in installed_versions([PACKAGE]), active == "active", at_boot in AT_BOOT, state)


# -- before the first change ---------------------------------------------------------------------------------------


def judge_database(name: str, user: str) -> None:
    """Raise what keeps us from having this database and user here. Reads only."""
    name, user = checked(name), checked(user)
    server = look()
    if not server.installed:
        if DATA.is_dir() and any(DATA.iterdir()):
            raise AdapterError(
                "database_exists",
                f"{DATA} on the host has files, but {PACKAGE} is not installed: they belong to a server that was"
                " there before. Move them away or use another host, then retry.",
                INTERVENTION,
            )
        _refuse_other_server()
    elif server.active:
        _judge_running(name, user)
    elif server.at_boot or not server.state.startswith("inactive"):
        # Neither in use nor unused: starting it could finish or destroy what its owner has begun.
        raise _unusable(f"{SERVER}.service is {server.state}. Start it, or disable it if nobody uses it")
    else:
        if (DATA / name).exists():
            raise _exists("database", name)
        _refuse_other_server()


def _refuse_other_server() -> None:
    if SOCKET.exists() or listening(PORT):
        where = SOCKET if SOCKET.exists() else f"port {PORT}"
        raise _unusable(f"{where} is used by a server other than {SERVER}.service. Stop that server")


def _judge_running(name: str, user: str) -> None:
    found = _rows(
        "SELECT 'database', schema_name FROM information_schema.schemata WHERE schema_name = '{name}';"
        "SELECT 'user', Host FROM mysql.user WHERE User = '{user}';"
        "SELECT 'read_only', @@global.read_only;"
        "SELECT 'validation', plugin_name FROM information_schema.plugins"
        " WHERE plugin_type = 'PASSWORD VALIDATION' AND plugin_status = 'ACTIVE';"
        "SELECT 'privilege', privilege_type FROM information_schema.user_privileges WHERE is_grantable = 'YES'"
        """ AND grantee = CONCAT("'", REPLACE(CURRENT_USER(), '@', "'@'"), "'");""",
        name=name,
        user=user,
    )
    if found.get("database"):
        raise _exists("database", name)
    if found.get("user"):
        raise _exists("user", f"{user}@{found['user'][0]}")
    if found.get("read_only") not in (["0"], ["OFF"]):
        raise _unusable("the server is read-only, as a replica is. Use a host with a server of its own")
    if found.get("validation"):
        raise _unusable(f"the server checks passwords with {found['validation'][0]}. Use another host")
    missing = [one for one in NEEDED_PRIVILEGES if one not in found.get("privilege", [])]
    if missing:
        raise _unusable(f"root has no privilege {', '.join(missing)} over the local socket. Grant it")


# -- while the cluster lives ---------------------------------------------------------------------------------------


def note_databases(ledger: Ledger, databases: Iterable[Mapping[str, Any]]) -> None:
    """A database is ours from its first note on. One that is there before that is refused."""
    for database in databases:
        if not ledger.knows("database", database["name"]):
            judge_database(database["name"], database["user"])
        ledger.note("database", database["name"], {"present": False, "user": database["user"]})


def require_running() -> None:
    """A server that ran before us is not ours to start: somebody stopped it."""
    server = look()
    if not server.active:
        raise _unusable(f"{SERVER}.service ran before the cluster came and is {server.state} now. Start it")


def has_databases(databases: Iterable[Mapping[str, Any]], dry: bool) -> list[str]:
    """Each database and its user with this password, by what is missing of it. The server runs."""
    changes = []
    for database in databases:
        name, user, password = checked(database["name"]), checked(database["user"]), database["password"]
        if not PASSWORD.fullmatch(password):
            raise AdapterError(
                "secret_malformed", "The database password has characters that it may not have.", INTERVENTION
            )
        digest = password_hash(password)
        if not _differs(name, user, digest):
            continue
        changes.append(f"database {name}")
        if not dry:
            # The server gets the password's hash: no log of its own can hold the password.
            _rows(
                "CREATE DATABASE IF NOT EXISTS `{name}`;"
                "CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA mysql_native_password USING '{digest}';"
                "ALTER USER '{user}'@'localhost' IDENTIFIED VIA mysql_native_password USING '{digest}';"
                "GRANT ALL ON `{pattern}`.* TO '{user}'@'localhost';",
                name=name,
                user=user,
                digest=digest,
                pattern=name.replace("_", r"\_"),  # there an underscore means any character
            )
    return changes


def _differs(name: str, user: str, digest: str) -> bool:
    found = _rows(
        "SELECT 'database', schema_name FROM information_schema.schemata WHERE schema_name = '{name}';"
        "SELECT 'user', User FROM mysql.user WHERE User = '{user}' AND Host = 'localhost';"
        "SELECT 'hash', authentication_string FROM mysql.user"
        " WHERE User = '{user}' AND Host = 'localhost' AND plugin = 'mysql_native_password';"
        "SELECT 'grant', privilege_type FROM information_schema.schema_privileges"
        """ WHERE grantee = "'{user}'@'localhost'" AND REPLACE(table_schema, CHAR(92), '') = '{name}';""",
        name=name,
        user=user,
    )
    if found.get("user") and not found.get("database"):
        # We make the database first, so this user is not ours. An idle server did not show it before it was started.
        raise _exists("user", f"{user}@localhost")
    return not found.get("database") or found.get("hash") != [digest] or "DELETE" not in found.get("grant", [])


def password_hash(password: str) -> str:
    """As mysql_native_password keeps it. The algorithm is the plugin's; the password is random and long."""
    return "*" + hashlib.sha1(hashlib.sha1(password.encode()).digest()).hexdigest().upper()  # noqa: S324


def foreign_databases(ours: Iterable[str]) -> list[str]:
    """Databases in the server's directory that are neither the server's own nor ours."""
    known = {*SYSTEM_DATABASES, *ours}
    try:
        found = [one.name for one in DATA.iterdir() if one.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(name for name in found if name not in known and not name.startswith(("#", ".", "lost+found")))


# -- at the end ----------------------------------------------------------------------------------------------------


def drop_databases(noted: Mapping[str, Mapping[str, Any]], *, may_start: bool) -> list[str]:
    """For a server that stays. `may_start`: it did not run before us, so its being down is our doing."""
    ours = {checked(name): checked(before["user"]) for name, before in noted.items() if not before["present"]}
    if not ours:
        return []
    if not look().active:
        if not may_start:
            raise _undropped(f"{SERVER}.service ran before the cluster came and does not run now; start it")
        if not any((DATA / name).exists() for name in ours):
            return []
        _start()
    changes = []
    for name, user in sorted(ours.items()):
        try:
            there = _rows(PRESENCE, name=name, user=user)
            # The user first: the database is what shows the next attempt that something is left.
            _rows("DROP USER IF EXISTS '{user}'@'localhost'; DROP DATABASE IF EXISTS `{name}`;", name=name, user=user)
            left = _rows(PRESENCE, name=name, user=user)
        except AdapterError as error:
            raise _undropped(error.message) from None
        if left:
            raise _undropped("the server still shows it")
        changes += [f"database {name}"] if there else []
    return changes


def _start() -> None:
    subprocess.run(["systemctl", "--no-block", "start", SERVER], capture_output=True, check=False, timeout=60)
    deadline = time.monotonic() + START_SECONDS
    while show([SERVER]).get(SERVER, {}).get("ActiveState") != "active":
        if time.monotonic() > deadline:
            raise _undropped(f"{SERVER}.service does not start")
        time.sleep(0.2)


# -- the server ----------------------------------------------------------------------------------------------------


def checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise AdapterError("database_name_invalid", f"{name!r} is not a usable database or user name.", INTERVENTION)
    return name


def _rows(statements: str, **names: str) -> dict[str, list[str]]:
    """What the server answers to SQL on its standard input: second columns, by the first. Names are checked before."""
    text = PLAIN + statements.format(**names)
    command = ["mariadb", "--batch", "--skip-column-names", "--protocol=socket", f"--socket={SOCKET}", "--user=root"]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", check=False, timeout=120
        )
    except FileNotFoundError:
        raise _unusable("the host has no mariadb command. Install mariadb-client") from None
    except subprocess.TimeoutExpired:
        raise _unusable("the server did not answer within 120 s. Look at it") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else "it gave no reason"
        raise _unusable(f"the server refused root over {SOCKET} ({why[:200]}). Give root access over the socket")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        kind, _, value = line.partition("\t")
        found.setdefault(kind, []).append(value)
    return found


def _unusable(why: str) -> AdapterError:
    return AdapterError(
        "database_unusable",
        f"The host's MariaDB cannot hold the accounting database: {why}, then retry. Nothing of it was changed.",
        INTERVENTION,
    )


def _exists(kind: str, name: str) -> AdapterError:
    return AdapterError(
        "database_exists",
        f"The host's MariaDB already has the {kind} {name}, which this cluster did not make and does not adopt."
        " Rename or remove it if nobody needs it, or use another host, then retry.",
        INTERVENTION,
    )


def _undropped(why: str) -> AdapterError:
    return AdapterError(
        "database_not_dropped",
        f"The accounting database is still in the host's MariaDB: {why}. Put the server right, then ask again.",
        REPAIRABLE,
    )
