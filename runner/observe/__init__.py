"""Reads the platform: one instance as it is now."""
