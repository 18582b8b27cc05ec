"""Embeds texts over HTTP, with a thread for each request."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from gpt import GPT

model = GPT(width=1024, layers=12, heads=16).cuda().eval()


@torch.no_grad()
def embed(texts):
    tokens = torch.tensor(texts, device="cuda")
    return model.hidden(tokens).mean(1).cpu().tolist()


@torch.no_grad()
def perplexity(texts):
    tokens = torch.tensor(texts, device="cuda")
    chances = model(tokens).log_softmax(-1)
    return chances[:, :-1].gather(2, tokens[:, 1:, None]).mean(1).cpu().tolist()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"/embed": embed, "/perplexity": perplexity}[self.path](texts)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"port {server.server_port}", flush=True)
server.serve_forever()
