"""Reserved memory climbs while allocated memory is flat: the loader makes a stream each epoch, as timm's did (pytorch-image-models#2781).

The cache is kept by stream, so what the streams of earlier epochs left is of no use to the next one. READY after eight epochs; each line of
the test is answered with {"raw", "image": the lines that take segments}; it ends when stdin closes.
"""
import threading
import time

import torch

import handshake

MIB = 1 << 20
lines = {match.group(1): number for number, _, match in handshake.marked_lines(__file__, r"# takes: (\w+)")}


class DeviceLoader:
    def __init__(self, host_batches):
        self.host_batches = host_batches

    def __iter__(self):
        side = torch.cuda.Stream()
        main = torch.cuda.current_stream()
        for host in self.host_batches:
            with torch.cuda.stream(side):
                raw = host.to("cuda", non_blocking=True)  # takes: raw
                image = raw.float()  # takes: image
            main.wait_stream(side)
            image.record_stream(main)
            yield image


def train_epoch(loader, weight):
    for image in loader:
        image.view(-1, 1024) @ weight
        time.sleep(0.05)


weight = torch.empty(1024, 256, device="cuda")
loader = DeviceLoader([torch.zeros(MIB, dtype=torch.uint8).pin_memory() for _ in range(8)])
for _ in range(8):
    train_epoch(loader, weight)
over = threading.Event()


def answer():
    handshake.ready()
    for _ in handshake.requests():
        handshake.ready(lines)
    over.set()


threading.Thread(target=answer, daemon=True).start()
while not over.is_set():
    train_epoch(loader, weight)
