"""Ticks and runs, and what they need."""
