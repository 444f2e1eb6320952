"""The five questions that the API alone has to answer about a request, of a success and of a failure. Pure."""

from collections.abc import Sequence

from runner.model.plan import Detail
from runner.model.platform import AppInstance, Operation, OperationStatus

QUESTIONS = ("instance", "member", "operation", "correlation id", "runtime")


def answers(account: Detail, instance: AppInstance, operation: Operation) -> dict[str, str | None]:
    """The answer to each question, from what `explain` has about the correlation id; None where there is none."""
    shown, members = account["instance"], account["members"]
    own = next((one for one in account["operations"] if one["id"] == str(operation.id)), None)
    failed = operation.status == OperationStatus.FAILED
    error = (own or {}).get("error") or {}
    names = [f"{one['name']} is {one['status']}" for one in members]
    not_made = _named(operation, str(error.get("message"))) if failed else None
    seen = [f"{key} {value}" for one in members for key, value in one["runtime"].items() if value is not None]
    seen = seen or [f"{key} {value}" for key, value in account["runtime"].items()]
    is_explained = not failed or (error.get("code") and error.get("message") and account["next"])
    return {
        "instance": f"{shown['name']} is {shown['status']}" if shown["id"] == str(instance.id) else None,
        "member": ", ".join(names) or not_made,
        "operation": f"{account['end']}" if own and is_explained else None,
        "correlation id": operation.correlation_id if operation.correlation_id in account["correlation_ids"] else None,
        "runtime": "; ".join(seen) or None,
    }


def _named(operation: Operation, message: str) -> str | None:
    """A request that was refused before a member was made: the error has to name what it is about."""
    found: Sequence[str] = [str(one) for one in operation.allocation_ids if str(one) in message]
    return f"none was made: the error names allocation {', '.join(found)}" if found else None


def unanswered(found: dict[str, str | None]) -> list[str]:
    return [question for question, answer in found.items() if not answer]
