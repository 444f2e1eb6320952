"""Everything on a host that a cluster could leave behind, file by file, as lines that can be compared."""

import re

from sandbox.fleet.fleet import Fleet
from tests.commands import ends

# Left out whole, with the reason why nothing there can be ours to put back.
SKIPPED = {
    "/proc": "the kernel's",
    "/sys": "the kernel's",
    "/dev": "the kernel's",
    "/tmp": "shared by all users, and emptied at boot",
    "/var/tmp": "shared by all users",
    "/run/systemd": "systemd's account of what runs",
    "/run/udev": "udev's account of devices",
    "/run/user": "of logins",
    "/run/sudo": "of logins",
    "/run/log": "the journal",
    "/var/log/journal": "the journal",
    "/var/cache/apt": "packages and indexes that apt fetched",
    "/var/lib/apt/lists": "indexes that apt fetched",
}

# Files that differ afterwards, with the reason.
COMES_AND_GOES = {
    r"/var/lib/mysql/.+": "a MariaDB that was there writes its own state whenever it runs; its databases are compared",
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-": "what the account tools keep of the version before",
    r"/etc/.pwd.lock": "the account tools' lock",
    r"/run/gpuaas-slurm(/(fences\.json|lock))?": "numbers of members that were here, so that a late call is refused",
    r"/run/(adduser|motd.dynamic)": "traces of the account tools and of logins, gone at boot",
    r"/var/cache/debconf/.*-old": "what debconf keeps of the version before",
    r"/var/cache/ldconfig/aux-cache": "ldconfig's own cache",
    r"/var/lib/dpkg/(status|diversions|statoverride|available)-old": "what dpkg keeps of the version before",
    r"/var/lib/ucf/(hashfile|registry)\.\d+": "what ucf keeps of the versions before",
    r"/var/log/(alternatives|dpkg)\.log": "the package tools' log",
    r"/var/log/apt(/.*)?": "the package tools' log",
    r"/var/log/(wtmp|btmp|lastlog)(\.db)?": "logins",
    r"/var/lib/systemd/(timers|timesync|linger|random-seed)(/.*)?": "systemd's own state",
}

SCRIPT = r"""
import hashlib, os, stat, subprocess, sys
skipped = set(sys.argv[1:])
def show(kind, command):
    for line in subprocess.run(command, capture_output=True, text=True, shell=True).stdout.splitlines():
        print(kind, line)
show("package", "dpkg-query --show --showformat='${Package} ${db:Status-Status} ${Version}\\n'")
show("account", "getent passwd")
show("group", "getent group")
show("unit", "systemctl list-unit-files --no-legend --no-pager --full | awk '{print $1, $2}'")
show("failed", "systemctl list-units --failed --no-legend --no-pager --plain | awk '{print $1}'")
show("port", "ss --no-header --listening --tcp --numeric | awk '{print $4}'")
show("process", "ps -e -o user:20=,comm= | grep -E 'slurm|munge|mysqld|mariadbd'")
show("database", "ls -d /var/lib/mysql/*/")
for top, names, files in os.walk("/"):
    names[:] = [name for name in names if os.path.join(top, name) not in skipped]
    for name in [*names, *files]:
        path = os.path.join(top, name)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        what = ""
        if stat.S_ISLNK(status.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as content:
                what = hashlib.sha256(content.read()).hexdigest()[:16]
        print("path", path, oct(status.st_mode), status.st_uid, status.st_gid, what)
"""


def picture(fleet: Fleet, host: str) -> set[str]:
    """A line for each thing on the host."""
    done = fleet.exec(host, ["python3", "-", *SKIPPED], stdin=SCRIPT)
    ends(done, 0)
    return {line for line in map(_comparable, done.stdout.splitlines()) if line}


def _comparable(line: str) -> str | None:
    kind, name, *rest = line.split(" ")
    if kind != "path":
        return line
    if any(re.fullmatch(pattern, name) for pattern in COMES_AND_GOES):
        return None
    return " ".join([kind, name, *rest])


def difference(before: set[str], after: set[str], *kept: str) -> list[str]:
    """What appeared and what vanished; nothing, if the host is as it was. `kept` are paths that policy keeps."""
    prefixes = tuple(f"path {path}{end}" for path in kept for end in (" ", "/"))
    new = [line for line in after - before if not line.startswith(prefixes)]
    return sorted([f"+ {line}" for line in new] + [f"- {line}" for line in before - after])
