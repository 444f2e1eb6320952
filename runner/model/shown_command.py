"""A command as it may be kept in a record: short, and without what could be a secret. Pure.

It errs on the safe side: a value that only looks like a secret is left out too.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from runner.model.host_data import printable

HIDDEN = "***"
COMMAND_BYTES = 240
MOST_DEPTH = 4
_SECRET = re.compile(
    r"pass|secret|token|cred|auth|api[-_]?key|access[-_]?key|private|cookie|session|login|bearer", re.I
)
_VARIABLES = ("-e", "--extra-vars")  # of Ansible: names are kept, values are not
# Of curl, mysql, sshpass and others: the value may be a password.
_VALUES = ("-p", "-u", "--user", "-H", "--header", "-b", "--proxy-user")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.S)
_IN_TEXT = (
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]*@"), rf"\1{HIDDEN}@"),  # user and password in an address
    (re.compile(r"\b(hv[sbr]\.|eyJ|s\.)[A-Za-z0-9_-]{10,}[A-Za-z0-9_.-]*"), HIDDEN),  # tokens of Vault, JWTs
    (re.compile(r"\b(Bearer|Basic)\s+\S+", re.I), rf"\1 {HIDDEN}"),
)


def shown_command(command: Sequence[str]) -> str:
    """The words of a command on one line, without secrets, cut to a bounded length."""
    return printable(" ".join(_words(command, MOST_DEPTH)), COMMAND_BYTES)


def shown_text(text: str, most: int) -> str:
    """A sentence that a person typed, without what looks like a secret."""
    return printable(_without_tokens(" ".join(text.split())), most)


def _words(command: Sequence[str], depth: int) -> Iterator[str]:
    words = iter(command)
    for word in words:
        name, sign, value = word.partition("=")
        if word in _VARIABLES:
            yield word
            yield from (_variables(one) for one in _next(words))
        elif name in _VARIABLES and sign:
            yield f"{name}={_variables(value)}"
        elif word.startswith("-e") and not word.startswith("--"):
            yield f"-e {_variables(word[2:])}"
        elif word in _VALUES or (word.startswith("-") and not sign and _SECRET.search(word)):
            yield word
            yield from (HIDDEN for _ in _next(words))
        elif word.startswith("-") and sign and _SECRET.search(name):
            yield f"{name}={HIDDEN}"
        elif re.match(r"-[pu][^-]", word):  # the value follows at once
            yield f"{word[:2]}{HIDDEN}"
        else:
            yield _plain(word, depth)


def _next(words: Iterator[str]) -> list[str]:
    found = next(words, None)
    return [] if found is None else [found]


def _plain(word: str, depth: int) -> str:
    """A word that is no option. A script, such as that of `sh -c`, is read like a command."""
    if word != word.strip() or len(word.split()) > 1:
        try:
            inner = shlex.split(word)
        except ValueError:
            return HIDDEN
        return f"'{' '.join(_words(inner, depth - 1))}'" if depth else HIDDEN
    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and not word.startswith("-"):
        return f"{assigned[1]}={HIDDEN}"
    return _without_tokens(word)


def _variables(text: str) -> str:
    """Extra variables: a file's name, or the names of the variables; anything else may hold a secret as a whole."""
    if text.startswith("@"):
        return f"@{text[1:].rpartition('/')[2]}"
    try:
        pairs = [_ASSIGNMENT.fullmatch(one) for one in shlex.split(text)]
    except ValueError:
        return HIDDEN
    return " ".join(f"{one[1]}={HIDDEN}" for one in pairs if one) if pairs and all(pairs) else HIDDEN


def _without_tokens(text: str) -> str:
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text
