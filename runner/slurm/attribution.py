"""Which project and which identity a job belongs to: from its account and user to `project_id` and `subject`. Pure.

It also holds for projects that are detached and for identities that left: neither an account nor a user's name is ever
given to another one, and the notes of the attachments keep both.
"""

from collections.abc import Iterable, Iterator
from uuid import UUID

from runner.model.attached import AttachedProject
from runner.model.plan import Detail
from runner.slurm.attached import ProjectNotes, account_of

SEPARATOR = "|"
REQUIRED = ("Account", "User")


class UnreadableRows(ValueError):
    """The text is not that of `sacct --parsable2` with the columns that are needed."""


def attributed(answer: str, attachments: Iterable[AttachedProject]) -> Iterator[Detail]:
    """Each row of `sacct --parsable2`, by its columns, with `project_id` and `subject`; null where they are not known.

    An account that no attachment has is not one of a project: an operator made it by hand.
    """
    projects, subjects = _on_record(attachments)
    lines = [line for line in answer.splitlines() if line]
    columns = lines[0].split(SEPARATOR) if lines else []
    if missing := [name for name in REQUIRED if name not in columns]:
        raise UnreadableRows(f"the first line has no column {missing[0]}")
    for line in lines[1:]:
        # Only the last column may have a separator in it: a name that a person gave.
        values = line.split(SEPARATOR, len(columns) - 1)
        if len(values) != len(columns):
            raise UnreadableRows(f"a line has {len(values)} columns instead of {len(columns)}")
        row = dict(zip(columns, values, strict=True))
        project = projects.get(row["Account"])
        subject = subjects.get((row["Account"], row["User"]))
        yield {**row, "project_id": str(project) if project else None, "subject": subject}


def _on_record(attachments: Iterable[AttachedProject]) -> tuple[dict[str, UUID], dict[tuple[str, str], str]]:
    projects: dict[str, UUID] = {}
    subjects: dict[tuple[str, str], str] = {}
    for one in sorted(attachments, key=lambda each: str(each.created_at)):
        account = account_of(one)
        projects[account] = one.project_id
        for subject, text in (ProjectNotes.read(one.adapter_detail).people or {}).items():
            subjects[account, text.partition(":")[0]] = subject
    return projects, subjects
