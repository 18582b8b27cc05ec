"""A language model of three LSTM layers, Adam."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20000, 650)
        self.lstm = nn.LSTM(650, 650, 3, batch_first=True, dropout=0.2)
        self.head = nn.Linear(650, 20000)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    tokens = torch.randint(0, 20000, (64, 129), device="cuda")
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
