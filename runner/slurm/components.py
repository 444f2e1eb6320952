"""The kinds of member of a cluster: one controller, and workers."""

from runner.model.components import Components

CONTROLLER = "controller"
WORKER = "worker"
COMPONENTS = Components(lead=CONTROLLER, others=(WORKER,), joining=("add", "replace"))
