"""The tick, and what surrounds it."""
