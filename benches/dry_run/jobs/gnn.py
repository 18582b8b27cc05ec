"""A graph network: messages along edges, summed at their ends."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update, self.norm = nn.GRUCell(width, width), nn.BatchNorm1d(width)

    def forward(self, nodes, start, end):
        messages = self.message(torch.cat([nodes[start], nodes[end]], 1))
        return self.norm(self.update(torch.zeros_like(nodes).index_add(0, end, messages), nodes))


model = nn.ModuleList(Layer(256) for _ in range(5)).cuda()
head = nn.Linear(256, 40).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for step in range(3):
    nodes = torch.randn(40000, 256, device="cuda")
    start, end = torch.randint(0, 40000, (2, 240000), device="cuda")
    for layer in model:
        nodes = layer(nodes, start, end)
    loss = nn.functional.cross_entropy(head(nodes), torch.randint(0, 40, (40000,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
