"""Runs in every Python of a dry run: the user's own sitecustomize, then memspy's observer."""
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_others():
    """The sitecustomize that this file hides, if there is one."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    run_others()
finally:
    if os.environ.get("MEMSPY_DRY_RUN"):
        import memspy_observer

        memspy_observer.when_imported("torch", memspy_observer.watch)
