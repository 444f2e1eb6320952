"""A private apt repository on a host of a fleet: Slurm under a version of its own, a login, and a key that signs it."""

import textwrap
from dataclasses import dataclass

from sandbox.fleet.fleet import Fleet
from tests.commands import ends
from tests.e2e.cluster import until
from tests.platform_process import Doc

PORT = 8080
USER = "slurm"

# One suite is older than Debian's, so that nobody would take it by chance, and one is newer, to move to. Both have a
# munge newer than any, which nobody may take.
_BUILD = """
    import hashlib, os, pathlib, subprocess

    def run(*command, **more):
        return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout

    os.environ.update(DEBIAN_FRONTEND="noninteractive", GNUPGHOME="/srv/gpg")
    run("apt-get", "-qq", "update")
    run("apt-get", "-qq", "install", "--yes", "--no-install-recommends", "gpg", "gpg-agent")
    rows = [row.split() for row in run("dpkg-query", "-W", "-f", "${source:Package} ${Package}\\n").splitlines()]
    work, root = pathlib.Path("/srv/work"), pathlib.Path("/srv/repository")
    arch = run("dpkg", "--print-architecture").strip()
    for directory in (work, root / "slurm/pool", pathlib.Path("/srv/gpg")):
        directory.mkdir(parents=True, mode=0o700)
    run("apt-get", "-qq", "download", "munge", *(row[1] for row in rows if row[0] == "slurm-wlm"), cwd=work)
    for user in ("right", "wrong"):
        run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", f"{user}@example.org", "ed25519", "sign", "0")
    suites = {"older": ("~private1", []), "newer": ("+private2", [])}
    for deb in sorted(work.glob("*.deb")):
        tree = work / deb.stem
        run("dpkg-deb", "--raw-extract", deb, tree)
        before = run("dpkg-deb", "--field", deb, "Version").strip()
        control = tree / "DEBIAN/control"
        said = control.read_text()
        for suffix, entries in suites.values():
            control.write_text(said.replace(before, "99" if deb.name.startswith("munge_") else before + suffix))
            name = f"pool/{deb.stem}{suffix}.deb"
            run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, root / "slurm" / name)
            data = (root / "slurm" / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            entry = f"{control.read_text().strip()}\\nFilename: {name}\\nSize: {len(data)}\\nSHA256: {digest}\\n"
            entries.append(entry)
    date = run("date", "-Ru").strip().replace("+0000", "UTC")
    for suite, (_, entries) in suites.items():
        index = root / f"slurm/dists/{suite}/main/binary-{arch}/Packages"
        index.parent.mkdir(parents=True)
        index.write_text("\\n".join(entries))
        data = index.read_bytes()
        release = (
            f"Origin: Private\\nSuite: {suite}\\nCodename: {suite}\\nArchitectures: {arch}\\nComponents: main\\n"
            f"Date: {date}\\nSHA256:\\n {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-{arch}/Packages\\n"
        )
        signed = run("gpg", "--batch", "--local-user", "right@example.org", "--clearsign", input=release)
        (root / f"slurm/dists/{suite}/InRelease").write_text(signed)
    for user in ("right", "wrong"):
        print(run("gpg", "--armor", "--export", f"{user}@example.org"), end="")
        print("====")
"""
_SERVE = """
    import base64, http.server, pathlib

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *arguments):
            super().__init__(*arguments, directory="/srv/repository")

        def do_GET(self):
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            if base64.b64decode(given) != pathlib.Path("/srv/login").read_bytes():
                return self.send_error(401)
            super().do_GET()

    http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


@dataclass(frozen=True)
class Repository:
    uri: str
    key: str
    wrong_key: str

    def source(self, **changes: str) -> Doc:
        """As a rule of the platform names it."""
        said = {"uri": self.uri, "suite": "older", "components": ["main"], "signing_key": self.key}
        return said | changes


def serve(fleet: Fleet, host: str, password: str) -> Repository:
    """Have it on a warm host, whose packages it offers."""

    def run(*argv: str, stdin: str = "") -> str:
        done = fleet.exec(host, argv, stdin)
        ends(done, 0)
        return done.stdout

    keys = run("python3", "-", stdin=textwrap.dedent(_BUILD)).split("====\n")
    run("tee", "/srv/login", stdin=f"{USER}:{password}")
    run("tee", "/srv/serve.py", stdin=textwrap.dedent(_SERVE))
    run("systemd-run", "--quiet", "--unit=repository", "python3", "/srv/serve.py")
    until(lambda: f":{PORT:04X} " in run("cat", "/proc/net/tcp"), 30, "the repository listens")
    (address,) = [one.address for one in fleet.hosts() if one.name == host]
    return Repository(f"http://{address}:{PORT}/slurm", keys[0], keys[1])
