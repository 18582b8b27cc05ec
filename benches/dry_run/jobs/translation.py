"""Translation by bidirectional GRUs with attention, Adagrad."""
import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, words=16000, width=512):
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, 2, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(width, 2 * width, 2, batch_first=True)
        self.head = nn.Linear(4 * width, words)

    def forward(self, source, target):
        encoded, _ = self.encoder(self.source(source))
        decoded, _ = self.decoder(self.target(target))
        weights = (decoded @ encoded.transpose(1, 2)).softmax(-1)
        return self.head(torch.cat([decoded, weights @ encoded], -1))


model = Translator().cuda()
optimizer = torch.optim.Adagrad(model.parameters())
for step in range(3):
    source = torch.randint(0, 16000, (48, 60), device="cuda")
    target = torch.randint(0, 16000, (48, 50), device="cuda")
    logits = model(source, target[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
