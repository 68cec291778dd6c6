"""Stand-ins for packages of GPU kernels that frameworks import and that are not there on a CPU machine."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from unittest.mock import MagicMock


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find modules of absent packages, whose every attribute is there and does nothing."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module of an absent package."""
        del path, target
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Return a module that has every attribute."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__version__ = "0"
        return module

    def exec_module(self, module):
        """Execute nothing."""


def stand_in(*packages):
    """Have those ``packages`` imported as stand-ins that are not installed; no kernel of them runs here."""
    absent = {name for name in packages if importlib.util.find_spec(name) is None}
    sys.meta_path.append(_Finder(absent))
