"""Wav2Vec2 (base's size) by configuration: convolutions over sound, then a transformer."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2Model

config = Wav2Vec2Config(mask_time_prob=0.0, layerdrop=0.0)
model = Wav2Vec2Model(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(3):
    sound = torch.randn(8, 80000, device="cuda")
    loss = model(sound).last_hidden_state.pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
