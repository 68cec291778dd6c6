"""Stand-ins for packages of GPU kernels that frameworks import and that are not there on a CPU machine."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from unittest.mock import MagicMock


class _Absent(MagicMock):
    """A module, class or function that is not there: it has every attribute, and is any type to pydantic."""

    def __get_pydantic_core_schema__(self, source, handler):
        """Return the schema of any value."""
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find modules of absent packages, whose every attribute is there and does nothing."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module of an absent package."""
        del path, target
        if any(name == package or name.startswith(f"{package}.") for package in self.packages):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Return a module that has every attribute."""
        module = _Absent(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__version__ = "0"
        return module

    def exec_module(self, module):
        """Execute nothing."""


def stand_in(*packages):
    """Have those ``packages`` imported as stand-ins that are not installed; no kernel of them runs here.

    A part of a package, ``a.b``, is taken to be absent.
    """
    absent = {name for name in packages if "." in name or importlib.util.find_spec(name) is None}
    sys.meta_path.append(_Finder(absent))
