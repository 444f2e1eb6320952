"""What an attacker would put into a record: values for the tests of bad input."""

from typing import Any

from hypothesis import strategies as st

TEXTS = [
    "",
    " ",
    "-oProxyCommand=touch owned",
    "-l root",
    "--",
    "a\nb",
    "a\r\nInclude=/etc/passwd",
    "a\x00b",
    "\x1b[2J",
    "{{ lookup('pipe', 'id') }}",
    "{% for x in [] %}{% endfor %}",
    "{# comment #}",
    "$(reboot)",
    "`reboot`",
    "x; reboot",
    "x | tee /etc/shadow",
    "x && reboot",
    "'; DROP DATABASE slurm; --",
    '"quoted"',
    "../../etc/shadow",
    "/etc/shadow",
    "file:///etc/shadow",
    "local",
    "ansible_connection=local",
    "!unsafe x",
    "\u212aelvin",  # the Kelvin sign: lower case k to some
    "lo\u017fhost",  # a long s
    "\u0430dmin",  # a Cyrillic a
    "\u202eabc",  # from right to left
    "\ufe0fx",
    "\ud800",  # half a character
    "127.0.0.1",
    "2130706433",
    "0x7f000001",
    "0177.1",
    "127.0x1",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fe80::1",
    "fe80::1%eth0",
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "0.0.0.0",
    "0.1.2.3",
    "255.255.255.255",
    "224.0.0.1",
    "localhost",
    "LOCALHOST",
    "a.localhost",
    "localhost.localdomain",
    "ip6-loopback",
    "ALL",
    "root",
    "__import__('os')",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59Z",
    "NaN",
    "A" * 70_000,
]
GOOD = ["10.0.0.9", "gs-1", "node7.example.org", "fd00::7", "ops", "ubuntu", "ready", "serving", "2026-01-02T03:04:05Z"]
text = st.sampled_from(TEXTS) | st.sampled_from(GOOD) | st.text(max_size=20)
scalar = text | st.integers() | st.floats() | st.booleans() | st.none() | st.sampled_from([2**70, -1, 10**30])
NAMES = ["ansible_connection", "ansible_host", "code", "message", "verdict", "operation_id", "since", "verb", "error"]


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | text, inner, max_size=4)


anything: st.SearchStrategy[Any] = st.recursive(scalar, _deeper, max_leaves=8)


def deep(levels: int) -> Any:
    """An object in an object in an object."""
    value: Any = "bottom"
    for _ in range(levels):
        value = {"leave": [value]}
    return value
