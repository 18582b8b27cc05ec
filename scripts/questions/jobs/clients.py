"""Three users of serve.py: two embed short texts, one asks for the perplexity of long ones.

    python clients.py PORT
"""
import json
import random
import sys
import threading
import time
import urllib.request


def ask(path, count, length):
    while True:
        texts = [[random.randrange(32000) for _ in range(length)] for _ in range(count)]
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(texts).encode()).read()
        time.sleep(0.05)


for user in [("/embed", 16, 64), ("/embed", 16, 64), ("/perplexity", 8, 1024)]:
    threading.Thread(target=ask, args=user).start()
