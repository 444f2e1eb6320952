"""The web farm on a host: its name, and the names of its package, daemon and files.

The host modules of the core take every name of an app from here: see plugins/module_utils/app.py at the top.
"""

from __future__ import annotations

import re
from pathlib import Path

NAME = "gpuaas-web-farm"
TITLE = "the web farm"
STATE_DIRECTORY = Path("/var/lib") / NAME
RUN_DIRECTORY = Path("/run") / NAME
SOURCE_PACKAGE = "nginx"
LAST_UNIT = "nginx"
LOGS = ("/var/log/nginx",)

PACKAGE_PREFIXES = ("gpuaas", "libnginx", "nginx")
ACCOUNTS: tuple[str, ...] = ()
DAEMONS = ("nginx",)
PORTS = ("80", "8080")
PATHS = ("/etc/nginx", "/srv/web-farm", "/var/lib/nginx", "/var/log/nginx", "/run/nginx.pid")

KNOWN_PACKAGES: dict[str, str] = {}
DAEMON_FILES = {"/var/lib/nginx": ("body", "fastcgi", "proxy", "scgi", "uwsgi"), "/var/log/nginx": ("*.log", "*.log.*")}

MAKERS: dict[str, re.Pattern[str]] = {}
OTHER_MAKERS: dict[str, re.Pattern[str]] = {}
FAMILIES = {"nginx": re.compile(r"nginx.*|80|8080")}
SHARED_PATHS: dict[str, str] = {}
