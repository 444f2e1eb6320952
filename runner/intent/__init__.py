"""Reads strictly what the API sends. Pure."""
