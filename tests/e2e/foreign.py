"""Data of others on a host: a MariaDB with databases that are not ours, and homes on a file system of their own."""

import subprocess
from dataclasses import dataclass

from sandbox.fleet.fleet import Fleet
from tests.commands import ends

DUMP = """
names=$(mariadb --batch --skip-column-names --execute="SELECT schema_name FROM information_schema.schemata WHERE
  schema_name NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys', 'slurm_acct_db') ORDER BY 1")
mariadb-dump --skip-dump-date --databases $names
mariadb --batch --execute="SELECT Host, User, Priv FROM mysql.global_priv WHERE User <> 'slurm' ORDER BY 1, 2;
  SELECT Host, Db, User FROM mysql.db WHERE User <> 'slurm' ORDER BY 1, 2, 3"
"""
# What the adapter made in the server and must drop again.
OURS = "SHOW DATABASES LIKE 'slurm%'; SELECT User FROM mysql.user WHERE User = 'slurm'"
CONFIGURATION = (
    "find /etc/mysql -type f -o -type l | sort | xargs sha256sum; find /etc/mysql | sort; mariadbd --print-defaults"
)


def on(fleet: Fleet, host: str, script: str) -> str:
    done = fleet.exec(host, ["sh", "-ec", script])
    ends(done, 0, why=f"on {host}")
    return done.stdout.strip()


def sql(fleet: Fleet, host: str, statements: str) -> str:
    done = fleet.exec(host, ["mariadb", "--batch", "--skip-column-names"], statements)
    ends(done, 0, why=f"on {host}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Server:
    """What the owner of a MariaDB would notice if it changed."""

    process: str
    configuration: str
    dump: str


def server(fleet: Fleet, host: str) -> Server:
    process = on(fleet, host, "systemctl show mariadb --property=MainPID,ActiveEnterTimestampMonotonic,UnitFileState")
    return Server(process, on(fleet, host, CONFIGURATION), on(fleet, host, DUMP))


def start_owners_server(fleet: Fleet, host: str) -> None:
    """A MariaDB that its owner configured, started and filled before any cluster came."""
    settings = "printf '[mariadbd]\\nmax_connections = 77\\n' >/etc/mysql/mariadb.conf.d/70-owner.cnf"
    on(fleet, host, f"{settings}; systemctl --quiet enable --now mariadb")
    sql(
        fleet,
        host,
        "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY, what TEXT);"
        "INSERT INTO shop.orders VALUES (1, 'bread'); CREATE USER keeper@localhost IDENTIFIED BY 'not-a-secret';"
        "GRANT ALL ON shop.* TO keeper@localhost;",
    )


def use_it_meanwhile(fleet: Fleet, host: str) -> None:
    """What its owner does while a cluster lives: a row, a table, a database."""
    sql(
        fleet,
        host,
        "INSERT INTO shop.orders VALUES (2, 'milk');"
        "CREATE TABLE shop.later (id INT); INSERT INTO shop.later VALUES (7);"
        "CREATE DATABASE afterwards; CREATE TABLE afterwards.notes (id INT); INSERT INTO afterwards.notes VALUES (8);",
    )


def put_homes_elsewhere(fleet: Fleet, host: str) -> None:
    """/home becomes a file system of its own, as a volume or a network share is. The host itself may not mount."""
    on(fleet, host, "cp -a /home /root/homes")
    pid = next(one.pid for one in fleet.hosts() if one.name == host)
    for command in (
        ["mount", "-t", "tmpfs", "-o", "mode=755", "homes", "/home"],
        ["cp", "-a", "/root/homes/.", "/home"],
    ):
        argv = ["nsenter", f"--target={pid}", "--mount", "--", *command]
        ends(subprocess.run(argv, capture_output=True, text=True, check=False), 0, why=f"on {host}")
    on(fleet, host, "rm -r /root/homes; findmnt /home")
