"""rollback of a whole instance: the packages and the configuration that the last upgrade replaced."""

from runner.intent.errors import IntentError
from runner.model.plan import Step
from runner.model.platform import InstanceStatus, Operation
from runner.slurm.decide.instance import queue, upgrade
from runner.slurm.world import World


def check(_world: World, operation: Operation) -> None:
    if operation.parameters:
        named = ", ".join(sorted(operation.parameters))
        raise IntentError("parameters_invalid", f"rollback takes no parameters: {named}")


def carry_out(world: World, operation: Operation) -> list[Step]:
    return upgrade.move(world, operation, lambda *_: [])


VERB = queue.Verb((InstanceStatus.RUNNING,), carry_out, check, upgrade.called_off)
