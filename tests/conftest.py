"""For every kind of test: what guards a merge finds the same each time; a person's own runs go on looking."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
