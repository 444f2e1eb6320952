"""A command as it may be kept in a record: short, and without what could be a secret. Pure.

It shows what is known to be harmless and hides the rest: a value is kept only behind an option that never takes a
secret, and a word only if it looks like a name or a path.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from runner.model.host_data import printable

HIDDEN = "***"
COMMAND_BYTES = 240
_VARIABLES = ("-e", "--extra-vars")  # of Ansible: names are kept, values are not
_SCRIPTS = ("-a", "--args", "-c")  # a command in one argument, of Ansible and of shells
# Options whose value is kept, and options that have none. Every other option may have one, which is hidden.
_KEPT = (
    *("-i", "--inventory", "-l", "--limit", "-m", "--module-name", "-t", "--tags", "--skip-tags", "--start-at-task"),
    *("-f", "--forks", "-n", "--unit", "--since", "--state", "--type"),
)
_FLAGS = re.compile(r"-v+|-b|-[CDK]|--become|--check|--diff|--verbose|--list-[a-z]+|--ask-[a-z-]+|--no-pager|--now|--")
_NAME = re.compile(r"[A-Za-z0-9_./,+%\[\]*!-]{1,80}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)=(.*)", re.S)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/\s@]*@)?([A-Za-z0-9_./:-]*)(.*)", re.S)
_IN_TEXT = (
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]*@"), rf"\1{HIDDEN}@"),  # user and password in an address
    (re.compile(r"\b(hv[sbr]\.|eyJ|s\.)[A-Za-z0-9_-]{10,}[A-Za-z0-9_.-]*"), HIDDEN),  # tokens of Vault, JWTs
    (re.compile(r"\b(Bearer|Basic)\s+\S+", re.I), rf"\1 {HIDDEN}"),
)


def shown_command(command: Sequence[str]) -> str:
    """The words of a command on one line, without secrets, cut to a bounded length."""
    return printable(" ".join(_words(command)), COMMAND_BYTES)


def shown_text(text: str, most: int) -> str:
    """A sentence that a person typed, without what looks like a secret."""
    return printable(_without_tokens(" ".join(text.split())), most)


def _words(command: Sequence[str]) -> Iterator[str]:
    words = iter(command)
    for word in words:
        option, sign, value = word.partition("=")
        if not word.startswith("-") or _FLAGS.fullmatch(word):
            yield _plain(word)
        elif word.startswith("-e") and not sign and word not in _VARIABLES:
            yield "-e " + HIDDEN
        elif word.startswith("-e") and word not in _VARIABLES and option not in _VARIABLES:
            yield f"-e {_variables(word[2:])}"
        elif not word.startswith("--") and len(word) > 2:  # the value may follow at once, as in -pSECRET
            yield f"{word[:2]}{HIDDEN}"
        else:
            name = option if re.fullmatch(r"--?[A-Za-z][A-Za-z-]*", option) else HIDDEN
            yield from (f"{name}={_value(option, value)}",) if sign else (name, *_next(option, words))


def _next(option: str, words: Iterator[str]) -> list[str]:
    found = next(words, None)
    return [] if found is None else [_value(option, found)]


def _value(option: str, value: str) -> str:
    if option in _VARIABLES:
        return _variables(value)
    if option in _SCRIPTS:
        return _script(value)
    return _plain(value) if option in _KEPT else HIDDEN


def _script(text: str) -> str:
    """A command in one argument: its words if they are plain, otherwise only its first word."""
    words = text.split()
    if len(words) > 1 and all(_NAME.fullmatch(word) or _ASSIGNMENT.fullmatch(word) for word in words):
        return f"'{' '.join(_words(words))}'"
    return f"'{_plain(words[0])} {HIDDEN}'" if len(words) > 1 and _NAME.fullmatch(words[0]) else HIDDEN


def _plain(word: str) -> str:
    """A word that is no option."""
    if _NAME.fullmatch(word) or _FLAGS.fullmatch(word):
        return _without_tokens(word)
    if assigned := _ASSIGNMENT.fullmatch(word):
        return f"{assigned[1]}={HIDDEN}"
    if address := _ADDRESS.fullmatch(word):
        hidden = HIDDEN if address[3] or "@" in word else ""
        return f"{address[1]}{address[2]}{hidden}"
    return HIDDEN


def _variables(text: str) -> str:
    """Extra variables: a file's name, or the names of the variables; anything else may hold a secret as a whole."""
    if text.startswith("@"):
        return f"@{_plain(text[1:].rpartition('/')[2])}"
    try:
        pairs = [_ASSIGNMENT.fullmatch(one) for one in shlex.split(text)]
    except ValueError:
        return HIDDEN
    return " ".join(f"{one[1]}={HIDDEN}" for one in pairs if one) if pairs and all(pairs) else HIDDEN


def _without_tokens(text: str) -> str:
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text
