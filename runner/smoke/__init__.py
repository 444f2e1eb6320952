"""A smoke run against a platform, as data: its steps, its results and its reports. It knows no app, and does no I/O."""
