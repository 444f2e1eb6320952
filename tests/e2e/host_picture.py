"""Everything on a host that a cluster could leave behind, file by file, as lines that can be compared."""

from sandbox.fleet.fleet import Fleet

# Left out whole, with the reason why nothing there can be ours to put back.
SKIPPED = {
    "/proc": "the kernel's",
    "/sys": "the kernel's",
    "/dev": "the kernel's",
    "/tmp": "anybody's, and emptied at boot",
    "/var/tmp": "anybody's",
    "/run/systemd": "systemd's account of what runs",
    "/run/udev": "udev's account of devices",
    "/run/user": "of logins",
    "/run/sudo": "of logins",
    "/run/log": "the journal",
    "/var/log/journal": "the journal",
    "/var/cache/apt": "packages and indexes that apt fetched",
    "/var/lib/apt/lists": "indexes that apt fetched",
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
show("process", "ps -e -o user=,comm= | sort -u")
for top, names, files in os.walk("/"):
    names[:] = [name for name in names if os.path.join(top, name) not in skipped]
    for name in [*names, *files]:
        path = os.path.join(top, name)
        try:
            told = os.lstat(path)
        except FileNotFoundError:
            continue
        what = ""
        if stat.S_ISLNK(told.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(told.st_mode):
            with open(path, "rb") as content:
                what = hashlib.sha256(content.read()).hexdigest()[:16]
        print("path", path, oct(told.st_mode), told.st_uid, told.st_gid, what)
"""


def picture(fleet: Fleet, host: str) -> set[str]:
    done = fleet.exec(host, ["python3", "-", *SKIPPED], stdin=SCRIPT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())
