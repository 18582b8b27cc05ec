"""T5 (base's size) by configuration, Adafactor."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda().train()
optimizer = torch.optim.Adafactor(model.parameters(), 1e-3)
for step in range(3):
    source = torch.randint(0, 32128, (8, 384), device="cuda")
    target = torch.randint(0, 32128, (8, 128), device="cuda")
    loss = model(input_ids=source, labels=target).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
