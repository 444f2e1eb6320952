"""Generic work on a host. Nothing here knows which app it is done for."""
