"""The changes of one file, made by mutmut, and the file with all of them in it."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import mangled_name_from_mutant_name, orig_function_and_class_names_from_key

_IMPORT = "from mutmut.mutation.trampoline import wrap_in_trampoline as _mutmut_mutated, MutantDict"
_OURS = """from functools import partial as _mutmut_partial
from tests.mutants.trampoline import switch as _mutmut_switch
_mutmut_mutated = _mutmut_partial(_mutmut_switch, {file!r})
MutantDict = dict"""


@dataclass(frozen=True)
class Change:
    """One mutant. `name` is mutmut's, and holds only until the file is edited; the rest describes it."""

    file: str
    name: str
    function: str
    before: str
    after: str

    @property
    def reached_as(self) -> tuple[str, str]:
        return self.file, mangled_name_from_mutant_name(self.name)

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.function, self.before, self.after


def change_file(root: Path, file: str) -> list[Change]:
    """Write the file with all its changes; each sleeps until it is made the active one."""
    path = root / file
    made = mutate_file_contents(file, path.read_text())
    lines = made.code.splitlines()

    def body(name: str) -> list[str]:
        span = made.line_span_by_function_name[name]
        text = "\n".join(lines[span.start - 1 : span.end]).strip("\n")
        return text.replace(name, "_", 1).splitlines()

    found = []
    for name in made.mutant_names:
        original = body(f"{mangled_name_from_mutant_name(name)}__mutmut_orig")
        function, owner = orig_function_and_class_names_from_key(name)
        before, after = _differing(original, body(name))
        found.append(Change(file, name, f"{owner}.{function}" if owner else function, before, after))
    assert _IMPORT in made.code, "mutmut writes another import than before: see _IMPORT"
    path.write_text(made.code.replace(_IMPORT, _OURS.format(file=file)))
    return found


def _differing(before: list[str], after: list[str]) -> tuple[str, str]:
    """The lines that differ, each on one line of text."""
    old, new = [], []
    for line in difflib.ndiff(before, after):
        if line.startswith("- "):
            old.append(line[2:])
        elif line.startswith("+ "):
            new.append(line[2:])
    return _flat(old), _flat(new)


def _flat(lines: list[str]) -> str:
    return re.sub(r"\s+", " ", " ".join(lines)).strip()
