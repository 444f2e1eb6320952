"""The accounting database and its user in the host's MariaDB: created, checked and dropped by SQL over a socket.

A server that was on the host before the cluster belongs to the host's owner. It is not configured, restarted or
stopped. An existing database or user of the same name is not adopted: the host is refused before its first change.
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

from .errors import INTERVENTION, REPAIRABLE, AdapterError, last_line
from .ledger import Ledger
from .packages import installed_versions
from .units import listening, request, state_of

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
    """The current state of the host's MariaDB."""

    installed: bool
    active: bool
    at_boot: bool
    state: str


def read_server() -> Server:
    unit = state_of(SERVER)
    active, at_boot = unit.get("ActiveState", "unknown"), unit.get("UnitFileState", "unknown")
    state = "masked" if unit.get("LoadState") == "masked" else f"{active} and {at_boot}"
    return Server(PACKAGE in installed_versions([PACKAGE]), active == "active", at_boot in AT_BOOT, state)


# -- before the first change ---------------------------------------------------------------------------------------


def check_database(name: str, user: str) -> None:
    """Raise the reason why this host cannot have the database and its user. Reads only."""
    name, user = check_name(name), check_name(user)
    server = read_server()
    if not server.installed:
        if DATA.is_dir() and any(DATA.iterdir()):
            raise AdapterError(
                "database_exists",
                f"{DATA} on the host has files, but {PACKAGE} is not installed: they belong to a former server. Move"
                " them away or use another host, then retry.",
                INTERVENTION,
            )
        _refuse_other_server()
    elif server.active:
        _check_running_server(name, user)
    elif server.at_boot or not server.state.startswith("inactive"):
        # Its owner may be in the middle of a change, which a start could break.
        raise _unusable(f"{SERVER}.service is {server.state}. Start it, or disable it if it is not used")
    else:
        if (DATA / name).exists():
            raise _exists("database", name)
        _refuse_other_server()


def _refuse_other_server() -> None:
    if SOCKET.exists() or listening(PORT):
        where = SOCKET if SOCKET.exists() else f"port {PORT}"
        raise _unusable(f"{where} is used by a server other than {SERVER}.service. Stop that server")


def _check_running_server(name: str, user: str) -> None:
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


# -- while the cluster is on the host --------------------------------------------------------------------------------


def note_databases(ledger: Ledger, databases: Iterable[Mapping[str, Any]]) -> None:
    """Note the databases before they are created. A database that exists without a note is refused."""
    for database in databases:
        if not ledger.has("database", database["name"]):
            check_database(database["name"], database["user"])
        ledger.note("database", database["name"], {"present": False, "user": database["user"]})


def require_running() -> None:
    """A server that ran before the cluster is not started by the adapter: its owner stopped it."""
    server = read_server()
    if not server.active:
        raise _unusable(f"{SERVER}.service ran before the cluster and is {server.state} now. Start it")


def converge_databases(databases: Iterable[Mapping[str, Any]], dry: bool) -> list[str]:
    """Create each database and its user, and set the password. The server must run."""
    changes = []
    for database in databases:
        name, user, password = check_name(database["name"]), check_name(database["user"]), database["password"]
        if not PASSWORD.fullmatch(password):
            raise AdapterError(
                "secret_malformed",
                "The database password has invalid characters. Replace it in the vault, then retry.",
                INTERVENTION,
            )
        digest = password_hash(password)
        if not _differs(name, user, digest):
            continue
        changes.append(f"database {name}")
        if not dry:
            # SQL with the hash: the server could log a password.
            _rows(
                "CREATE DATABASE IF NOT EXISTS `{name}`;"
                "CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA mysql_native_password USING '{digest}';"
                "ALTER USER '{user}'@'localhost' IDENTIFIED VIA mysql_native_password USING '{digest}';"
                "GRANT ALL ON `{pattern}`.* TO '{user}'@'localhost';",
                name=name,
                user=user,
                digest=digest,
                pattern=name.replace("_", r"\_"),  # a plain underscore is a wildcard in GRANT
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
        # The adapter creates the database first, so others created this user. A stopped server could not show it.
        raise _exists("user", f"{user}@localhost")
    return not found.get("database") or found.get("hash") != [digest] or "DELETE" not in found.get("grant", [])


def password_hash(password: str) -> str:
    """The hash of mysql_native_password. SHA-1 is the plugin's choice; the password is random and long."""
    return "*" + hashlib.sha1(hashlib.sha1(password.encode()).digest()).hexdigest().upper()  # noqa: S324


def foreign_databases(ours: Iterable[str]) -> list[str]:
    """Databases in the server's directory that belong neither to the server nor to the cluster."""
    expected = {*SYSTEM_DATABASES, *ours}
    try:
        found = [one.name for one in DATA.iterdir() if one.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(name for name in found if name not in expected and not name.startswith(("#", ".", "lost+found")))


# -- removal -----------------------------------------------------------------------------------------------------------


def drop_databases(noted: Mapping[str, Mapping[str, Any]], *, may_start: bool) -> list[str]:
    """Drop the cluster's databases on a server that stays. `may_start`: it did not run before the cluster."""
    ours = {check_name(name): check_name(before["user"]) for name, before in noted.items() if not before["present"]}
    if not ours:
        return []
    if not read_server().active:
        if not may_start:
            raise _drop_failed(f"{SERVER}.service ran before the cluster and does not run now; start it")
        if not any((DATA / name).exists() for name in ours):
            return []
        _start()
    changes = []
    for name, user in sorted(ours.items()):
        try:
            there = _rows(PRESENCE, name=name, user=user)
            # The user first: a database that is left shows the next attempt that the removal is not complete.
            _rows("DROP USER IF EXISTS '{user}'@'localhost'; DROP DATABASE IF EXISTS `{name}`;", name=name, user=user)
            left = _rows(PRESENCE, name=name, user=user)
        except AdapterError as error:
            raise _drop_failed(error.message) from None
        if left:
            raise _drop_failed("the server still shows it")
        changes += [f"database {name}"] if there else []
    return changes


def _start() -> None:
    request("start", SERVER)
    deadline = time.monotonic() + START_SECONDS
    while state_of(SERVER).get("ActiveState") != "active":
        if time.monotonic() > deadline:
            raise _drop_failed(f"{SERVER}.service does not start")
        time.sleep(0.2)


# -- the server ----------------------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise AdapterError(
            "database_name_invalid",
            f"{name!r} is not a valid name for a database or its user. Correct it, then retry.",
            INTERVENTION,
        )
    return name


def _rows(statements: str, **names: str) -> dict[str, list[str]]:
    """The answer to SQL: values of the second column by the first. The caller has checked the names."""
    text = PLAIN + statements.format(**names)
    command = ["mariadb", "--batch", "--skip-column-names", "--protocol=socket", f"--socket={SOCKET}", "--user=root"]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", check=False, timeout=120
        )
    except FileNotFoundError:
        raise _unusable("the host has no mariadb command. Install mariadb-client") from None
    except subprocess.TimeoutExpired:
        raise _unusable("the server did not answer within 120 s. Check it") from None
    if done.returncode != 0:
        why = last_line(done.stderr or done.stdout)
        raise _unusable(f"the server refused root over {SOCKET} ({why[:200]}). Give root access over the socket")
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        kind, _, value = line.partition("\t")
        found.setdefault(kind, []).append(value)
    return found


def _unusable(why: str) -> AdapterError:
    return AdapterError(
        "database_unusable",
        f"The host's MariaDB cannot have the accounting database: {why}, then retry. The server was not changed.",
        INTERVENTION,
    )


def _exists(kind: str, name: str) -> AdapterError:
    return AdapterError(
        "database_exists",
        f"The host's MariaDB already has the {kind} {name}, which this cluster did not create."
        " Rename or remove it if it is not needed, or use another host, then retry.",
        INTERVENTION,
    )


def _drop_failed(why: str) -> AdapterError:
    return AdapterError(
        "database_not_dropped",
        f"The accounting database is still in the host's MariaDB: {why}. Repair the server, then retry.",
        REPAIRABLE,
    )
