"""A recommendation model trained under the profiler of tbd-tools (pytorch_mem_profiler), and what that reports.

    python tests/targets/oracle_tbd.py [--device cuda|cpu] [--none]

Two points in each of two iterations of two epochs, each one line of JSON and READY, left by a line of input:
    {"point": "forward", "epoch", "iteration", "graph"}      the loss is alive; `graph` is what its graph really keeps
    {"point": "record", ..., "text", "gradients", "true"}    after the step: what `record_stats()` prints, and in `true`
                                                             the bytes of weights, gradients and optimizer state
`--none` sets gradients to None between iterations, as PyTorch 2 does unless told otherwise: the profiler then reports
none at all. The tool is no package: `MemoryProfiler` follows its rules as its source has them.
"""
import argparse
import warnings

import handshake
import scene_graphs
import scene_truth
import torch
from torch import nn


class NeuMF(nn.Module):
    """In the shape of the tool's example, whose sizes it does not give."""

    def __init__(self, users, items, width=64):
        super().__init__()
        self.mf_user_embed, self.mf_item_embed = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mlp_user_embed, self.mlp_item_embed = nn.Embedding(users, 2 * width), nn.Embedding(items, 2 * width)
        self.mlp = nn.ModuleList([nn.Linear(4 * width, 2 * width), nn.Linear(2 * width, width), nn.Linear(width, width)])
        self.final = nn.Linear(2 * width, 1)

    def forward(self, user, item):
        together = self.mf_user_embed(user) * self.mf_item_embed(item)
        x = torch.cat([self.mlp_user_embed(user), self.mlp_item_embed(item)], 1)
        for layer in self.mlp:
            x = nn.functional.relu(layer(x))
        return self.final(torch.cat([together, x], 1))


class MemoryProfiler:
    """Tensors are told apart by the address of their storage, and counted with all of it; the addresses seen are
    forgotten at the end of an epoch, so what it calls usage is a sum over all iterations so far."""

    def __init__(self, model, device):
        self.model, self.on_gpu = model, device == "cuda"
        self.epoch, self.iteration = 1, 0
        self.forget()
        for module in list(model.modules())[1:]:
            module.register_forward_hook(self.after_forward)
        warnings.simplefilter("ignore", FutureWarning)  # this hook is deprecated
        model.register_backward_hook(self.at_backward)

    def forget(self):
        self.seen_maps, self.seen_gradients = set(), set()
        self.feature_maps, self.all_gradients, self.gradients = 0, 0, {}

    @staticmethod
    def of(tensor):
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()

    def after_forward(self, _module, inputs, output):
        for tensor in (output, *inputs):
            at, size = self.of(tensor)
            if at not in self.seen_maps:
                self.seen_maps.add(at)
                self.feature_maps += size

    def at_backward(self, _module, grad_input, grad_output):
        """Called at the start of the backward pass: the hook of the root is on the node of its last operation."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.count(parameter.grad, name)
        for tensor in (*grad_input, *grad_output):
            if tensor is not None:
                self.count(tensor)

    def count(self, tensor, name=None):
        at, size = self.of(tensor)
        if at not in self.seen_gradients:
            self.seen_gradients.add(at)
            self.all_gradients += size
            if name is not None:
                self.gradients[name] = size

    def record_stats(self):
        self.iteration += 1
        weights = {}
        for name, parameter in self.model.named_parameters():
            at, size = self.of(parameter)
            weights[at] = (name, size)  # of several on one storage the last gives the name
        gradients = {name: self.gradients.get(name, 0) for name, _ in self.model.named_parameters()}
        report = {
            "epoch": self.epoch, "iteration": self.iteration, "feature_maps": self.feature_maps,
            "peak_cached": torch.cuda.max_memory_reserved() if self.on_gpu else 0,
            "current_cached": torch.cuda.memory_reserved() if self.on_gpu else 0,
            "weights": dict(weights.values()), "gradients": gradients,
            "intermediate_gradients": self.all_gradients - sum(gradients.values())}
        return {**report, "text": self.text(report)}

    @staticmethod
    def text(report):
        def row(label, size):
            return f"{label:.<45s}{round(size / 1e6):.>5d} MB"

        lines = [f"Memory Usage for Iteration {report['iteration']} of Epoch {report['epoch']}",
                 row("Peak cached", report["peak_cached"]), row("Current cached", report["current_cached"]),
                 row("Total feature map usage", report["feature_maps"]),
                 row("Total layer weight usage", sum(report["weights"].values()))]
        lines += [row(f"  {name}", size) for name, size in report["weights"].items()]
        lines.append(row("Total layer weight gradient usage", sum(report["gradients"].values())))
        lines += [row(f"  {name} grad", size) for name, size in report["gradients"].items()]
        return [*lines, row("Intermediate gradients", report["intermediate_gradients"])]

    def epoch_end(self):
        self.forget()
        self.iteration = 0
        self.epoch += 1


def point(**truth):
    handshake.ready(truth)
    handshake.hold()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--none", action="store_true", help="set gradients to None between iterations")
    args = parser.parse_args()
    users, items = 20_000, 5_000
    model = NeuMF(users, items).to(args.device)
    optimizer = torch.optim.Adam(model.parameters())
    profiler = MemoryProfiler(model, args.device)
    for epoch in range(2):
        for batch_index in range(2):
            user = torch.arange(1024, device=args.device) * (batch_index + 1) % users
            item = torch.arange(1024, device=args.device) * 7 % items
            optimizer.zero_grad(set_to_none=args.none)
            loss = model(user, item).square().mean()
            point(point="forward", epoch=epoch, iteration=batch_index, loss=id(loss),
                  graph=scene_truth.in_child(scene_graphs.of, [loss.grad_fn]))
            loss.backward()
            optimizer.step()
            point(point="record", **profiler.record_stats(), true=scene_truth.in_child(scene_truth.categories),
                  true_gradients=scene_truth.in_child(gradients_of, model))
        profiler.epoch_end()
    handshake.ready({"point": "last"})
    handshake.hold()


def gradients_of(model):
    return {name: p.grad.untyped_storage().nbytes() for name, p in model.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    main()
