"""The README examples of pytorch_memlab's MemReporter, and what it reports of them.

    python tests/targets/memlab_reporter.py linear|backward|tied|lstm
"""
import sys

import handshake
import torch
from pytorch_memlab import MemReporter


def linear():
    model = torch.nn.Linear(1024, 1024).cuda()
    return model, None


def backward():
    model = torch.nn.Linear(1024, 1024).cuda()
    inp = torch.Tensor(512, 1024).cuda()
    out = model(inp).mean()
    out.backward()
    return model, (inp, out)


def tied():
    first = torch.nn.Linear(1024, 1024).cuda()
    second = torch.nn.Linear(1024, 1024).cuda()
    second.weight = first.weight
    container = torch.nn.Sequential(first, second)
    inp = torch.Tensor(512, 1024).cuda()
    out = container(inp).mean()
    out.backward()
    return container, (inp, out)


def lstm():
    model = torch.nn.LSTM(1024, 1024).cuda()
    inp = torch.Tensor(10, 10, 1024).cuda()
    out, _ = model(inp)
    out.mean().backward()
    return model, (inp, out)


def main():
    model, kept = globals()[sys.argv[1]]()
    reporter = MemReporter(model)
    reporter.collect_tensor()
    reporter.get_stats()
    rows = [[name, list(size), numel, memory]
            for name, size, numel, memory in reporter.device_tensor_stat[torch.device("cuda:0")]]
    del reporter
    handshake.ready({"rows": rows, "allocated": torch.cuda.memory_allocated()})
    handshake.hold()
    del kept


if __name__ == "__main__":
    main()
