"""The kinds of member of a web farm."""

from runner.model.components import Components

BALANCER, WEB = "balancer", "web"
COMPONENTS = Components(lead=BALANCER, others=(WEB,), joining=("add",))
