"""Writes back to the platform; leases."""
