"""Pure data: the platform's objects, the plan, the world and the records kept on the platform."""
