"""Reads one instance from the platform."""
