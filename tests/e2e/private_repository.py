"""A private apt repository on a host of a fleet: Slurm under a version of its own, a login, and a key that signs it."""

import json
import textwrap
from dataclasses import dataclass

from sandbox.fleet.fleet import Fleet
from tests.commands import ends
from tests.e2e.cluster import until
from tests.platform_process import Doc

PORT = 8080
USER = "slurm"

# By default one suite is older than Debian's, so that no host installs it by chance, and one is newer, to move to. A
# munge newer than any is in both, which no host may install.
SUITES: dict[str, list[str]] = {"older": ["~private1"], "newer": ["+private2"]}
# In packages of a version of its own (not a suffix) slurmdbd is held or broken as long as a file exists. It stands for
# a conversion that takes long, or that fails: the programs are those of the suite, and nothing is converted.
HOLD, BREAK = "/run/hold-slurmdbd", "/run/break-slurmdbd"
_WRAPPER = f"""\
#!/bin/sh
case " $* " in *" -D "*)
    [ -e {BREAK} ] && echo "as requested, this slurmdbd does not start" && exit 1
    while [ -e {HOLD} ]; do i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done; sleep 0.2; done
esac
exec /usr/sbin/slurmdbd.real "$@"
"""

_BUILD = """
    import hashlib, json, os, pathlib, subprocess, sys

    def run(*command, **more):
        return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout

    given = json.loads(sys.argv[1])
    os.environ.update(DEBIAN_FRONTEND="noninteractive", GNUPGHOME="/srv/gpg")
    run("apt-get", "-qq", "update")
    rows = [row.split() for row in run("dpkg-query", "-W", "-f", "${source:Package} ${Package}\\n").splitlines()]
    work, root = pathlib.Path("/srv/work"), pathlib.Path("/srv/repository")
    arch = run("dpkg", "--print-architecture").strip()
    for directory in (work, root / "slurm/pool", pathlib.Path("/srv/gpg")):
        directory.mkdir(parents=True, mode=0o700)
    names = [row[1] for row in rows if row[0] == "slurm-wlm"] + (["munge"] if given["signed"] else [])
    run("apt-get", "-qq", "download", *names, cwd=work)
    if given["signed"]:
        run("apt-get", "-qq", "install", "--yes", "--no-install-recommends", "gpg", "gpg-agent")
        for user in ("right", "wrong"):
            key = ("--quick-generate-key", f"{user}@example.org", "ed25519", "sign", "0")
            run("gpg", "--batch", "--passphrase", "", *key)
    versions = sorted({one for suite in given["suites"].values() for one in suite})
    entries = {one: [] for one in versions}
    base = ""
    for deb in sorted(work.glob("*.deb")):
        tree = work / deb.stem
        run("dpkg-deb", "--raw-extract", deb, tree)
        before = run("dpkg-deb", "--field", deb, "Version").strip()
        munge = deb.name.startswith("munge_")
        base = base if munge else before
        control = tree / "DEBIAN/control"
        text = control.read_text()
        # Suffixes first: what is done to a tree for a version of its own stays in it.
        for version in sorted(versions, key=lambda one: one[:1].isdigit()):
            own = version[:1].isdigit()
            control.write_text(text.replace(before, "99" if munge else version if own else before + version))
            daemon = tree / "usr/sbin/slurmdbd"
            if own and daemon.exists() and not daemon.with_suffix(".real").exists():
                daemon.rename(daemon.with_suffix(".real"))
                daemon.write_text(given["wrapper"])
                daemon.chmod(0o755)
            name = f"pool/{deb.stem}{version}.deb"
            run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, root / "slurm" / name)
            data = (root / "slurm" / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            entry = f"{control.read_text().strip()}\\nFilename: {name}\\nSize: {len(data)}\\nSHA256: {digest}\\n"
            entries[version].append(entry)
    date = run("date", "-Ru").strip().replace("+0000", "UTC")
    for suite, listed in given["suites"].items():
        index = root / f"slurm/dists/{suite}/main/binary-{arch}/Packages"
        index.parent.mkdir(parents=True)
        index.write_text("\\n".join(entry for version in listed for entry in entries[version]))
        data = index.read_bytes()
        release = (
            f"Origin: Private\\nSuite: {suite}\\nCodename: {suite}\\nArchitectures: {arch}\\nComponents: main\\n"
            f"Date: {date}\\nSHA256:\\n {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-{arch}/Packages\\n"
        )
        if given["signed"]:
            signed = run("gpg", "--batch", "--local-user", "right@example.org", "--clearsign", input=release)
            (root / f"slurm/dists/{suite}/InRelease").write_text(signed)
        else:
            (root / f"slurm/dists/{suite}/Release").write_text(release)
    for user in ("right", "wrong"):
        print(run("gpg", "--armor", "--export", f"{user}@example.org") if given["signed"] else "", end="")
        print("====")
    print(base, end="")
"""
_SERVE = """
    import base64, http.server, pathlib

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments):
            super().__init__(*arguments, directory="/srv/repository")

        def do_GET(self):
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            login = pathlib.Path("/srv/login")
            if login.exists() and base64.b64decode(given) != login.read_bytes():
                return self.send_error(401)
            super().do_GET()

    http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


@dataclass(frozen=True)
class Repository:
    uri: str
    key: str
    wrong_key: str
    base: str  # the version of Slurm's packages that the others were made from

    def source(self, **changes: str) -> Doc:
        """As a rule of the platform names it."""
        source = {"uri": self.uri, "suite": "older", "components": ["main"], "signing_key": self.key}
        return source | changes


def serve(fleet: Fleet, host: str, password: str) -> Repository:
    """Have it on a warm host, whose packages it offers."""
    return _serve(fleet, host, SUITES, password)


def serve_openly(fleet: Fleet, host: str, suites: dict[str, list[str]]) -> Repository:
    """One without a login and a signature, for hosts that name it among their own sources: see `use`.

    A suite's versions are suffixes of the packages' own (the empty one is that itself), or versions of their own.
    """
    return _serve(fleet, host, suites, "")


def use(fleet: Fleet, host: str, repository: Repository, suite: str) -> None:
    """The host's own source of Slurm from now on, with its index fetched and its base version installed."""
    entry = f"deb [trusted=yes] {repository.uri} {suite} main"
    alone = "-o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList=/etc/apt/sources.list.d/private.list"
    ours = "dpkg-query -W -f '${source:Package} ${Package} ${Version}\n' | awk '$1 == \"slurm-wlm\"'"
    script = f"""
        set -e
        echo '{entry}' >/etc/apt/sources.list.d/private.list
        apt-get -qq update {alone} -o APT::Get::List-Cleanup=0
        install -d -m 700 /var/lib/gpuaas-slurm
        touch /var/lib/gpuaas-slurm/package-index-fetched
        if {ours} | awk -v base='{repository.base}' '$3 != base {{ found = 1 }} END {{ exit !found }}'; then
            {ours} | awk -v base='{repository.base}' '{{ print $2 "=" base }}' |
                DEBIAN_FRONTEND=noninteractive xargs apt-get -qq install -y --allow-downgrades
        fi
    """
    ends(fleet.exec(host, ["sh", "-c", script]), 0)


def _serve(fleet: Fleet, host: str, suites: dict[str, list[str]], password: str) -> Repository:
    def run(*argv: str, stdin: str = "") -> str:
        done = fleet.exec(host, argv, stdin)
        ends(done, 0)
        return done.stdout

    given = json.dumps({"suites": suites, "signed": bool(password), "wrapper": _WRAPPER})
    right, wrong, base = run("python3", "-", given, stdin=textwrap.dedent(_BUILD)).split("====\n")
    if password:
        run("tee", "/srv/login", stdin=f"{USER}:{password}")
    run("tee", "/srv/serve.py", stdin=textwrap.dedent(_SERVE))
    run("systemd-run", "--quiet", "--unit=repository", "python3", "/srv/serve.py")
    until(lambda: f":{PORT:04X} " in run("cat", "/proc/net/tcp"), 30, "the repository listens")
    (address,) = [one.address for one in fleet.hosts() if one.name == host]
    return Repository(f"http://{address}:{PORT}/slurm", right, wrong, base)
