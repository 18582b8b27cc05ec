#!/usr/bin/env python3
"""Checks memspy on a machine with a GPU against PyTorch's and the driver's own figures.

    scripts/gpu-checks/run.py NAME [MEMSPY] [OPTION ...]      NAME --help says more about it
    scripts/with-sim scripts/gpu-checks/run.py NAME ...       on the simulated device

MEMSPY is the program, by default target/release/memspy. The checks need a Python with PyTorch, and
no Rust. The exit code is 1 if one fails. The names:
"""
import argparse
import ast
import importlib
import os
import shutil
import signal
import sys

import harness

NAMES = {name: name for name in ["counters", "devices", "exact", "flight", "fsdp", "holders", "iterations", "ranks", "summary"]}
NAMES["attribution"] = "attribution.check"


def docstring(name):
    """Read, not imported: the modules of some checks need PyTorch."""
    with open(os.path.join(harness.HERE, NAMES[name].replace(".", "/") + ".py"), encoding="utf-8") as file:
        return ast.get_docstring(ast.parse(file.read()))


def print_names():
    print(__doc__)
    for name in sorted(NAMES):
        print(f"  {name:13}{docstring(name).splitlines()[0]}")


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        return print_names()
    name = sys.argv[1]
    if name not in NAMES:
        sys.exit(f"run.py: there is no check '{name}'; they are: {', '.join(sorted(NAMES))}")
    try:
        check = importlib.import_module(NAMES[name])
    except ImportError as error:
        print(docstring(name))
        sys.exit(f"run.py: {name} needs a Python with PyTorch, which {sys.executable} is not: {error}")
    parser = argparse.ArgumentParser(prog=f"run.py {name}", description=check.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy", nargs="?", default=os.path.join(harness.ROOT, "target/release/memspy"))
    parser.add_argument("--json", metavar="FILE", help="also writes the figures and the failed checks there")
    check.add_options(parser)
    args = parser.parse_args(sys.argv[2:])
    args.memspy = os.path.abspath(args.memspy)
    if not os.access(args.memspy, os.X_OK):
        sys.exit(f"run.py: {args.memspy} is no program: 'cargo build --release' builds it")
    # A shell's background job ignores SIGINT, and memspy would inherit that and keep running.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    verdicts = harness.Verdicts()
    check.check(args, verdicts)
    if verdicts.end(args.json):
        shutil.rmtree(harness.FOLDER, ignore_errors=True)
    else:
        sys.exit(f"the recordings are kept in {harness.FOLDER}")


if __name__ == "__main__":
    main()
