"""Writes to the platform, with claims and leases."""
