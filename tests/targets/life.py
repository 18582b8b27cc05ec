"""A process whose life takes turns on request: children, another program, an end.

    python tests/targets/life.py

Requests: "fork N" starts N children that wait for "reap"; "reap" ends them and prints {"children": [exit
codes]}; "count" prints {"count"}, how often a thread has gone round; "exec" becomes another program (cat), "exec itself" this one again;
"exit CODE" ends. All but the last two are answered with READY. Pure Python, 3.8 and newer.
"""
import os
import sys
import threading
import time

import handshake

rounds = 0


def go_round():
    global rounds
    while True:
        rounds += 1
        time.sleep(0.001)


def start_child(end):
    child = os.fork()
    if child == 0:
        os.close(end[1])
        os.read(end[0], 1)
        os._exit(7)
    return child


if __name__ == "__main__":
    threading.Thread(target=go_round, name="rounds", daemon=True).start()
    pipe, children = os.pipe(), []
    handshake.ready()
    for request, *words in handshake.requests():
        if request == "fork":
            children += [start_child(pipe) for _ in range(int(words[0]))]
            handshake.ready()
        elif request == "reap":
            os.close(pipe[1])
            codes = [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children]
            handshake.ready({"children": codes})
        elif request == "count":
            handshake.ready({"count": rounds})
        elif request == "exec" and words:
            os.execv(sys.executable, [sys.executable, *sys.argv])
        elif request == "exec":
            os.execvp("cat", ["cat"])
        elif request == "exit":
            sys.stdout.flush()
            os._exit(int(words[0]))
