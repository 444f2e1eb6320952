"""Metrics of a runner. Knows no app; prometheus_client is loaded only if a setting asks for it."""
