"""Ansible modules of library/ as Python modules: they import module_utils under Ansible's own name for it."""

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]


@cache
def library_module(name: str) -> ModuleType:
    """As Ansible runs it on a host, but not as the main program."""
    own = str(ROOT / "module_utils")
    if own not in ansible.module_utils.__path__:
        ansible.module_utils.__path__.append(own)
    spec = importlib.util.spec_from_file_location(f"library_{name}", ROOT / "library" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
