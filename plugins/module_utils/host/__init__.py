"""Generic work on a host, independent of the app."""
