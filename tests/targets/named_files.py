"""A job whose code says that it comes from the files named.

    python tests/targets/named_files.py [--chroot DIR] [--user ID] FILE ...

One function for each FILE, which claims to be its first two lines; all of them are on the stack. With --user it gives up its
rights before it is READY. Pure Python, 3.8 and newer.
"""
import argparse
import os
import time

import handshake

parser = argparse.ArgumentParser()
parser.add_argument("--chroot")
parser.add_argument("--user", type=int)
parser.add_argument("files", nargs="+")
arguments = parser.parse_args()


def wait():
    handshake.ready()
    for _ in handshake.requests():
        time.sleep(0)


def named(file, then):
    code = compile("def named(then):\n    then()\n", file, "exec")
    names = {}
    exec(code, names)
    return lambda: names["named"](then)


if __name__ == "__main__":
    if arguments.chroot:
        os.chroot(arguments.chroot)
        os.chdir("/")
    if arguments.user is not None:
        os.setgroups([])
        os.setgid(arguments.user)
        os.setuid(arguments.user)
    run = wait
    for file in arguments.files:
        run = named(file, run)
    run()
