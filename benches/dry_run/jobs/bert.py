"""BERT-base by configuration, random weights, fp16 autocast with a gradient scaler."""
import torch
from transformers import BertConfig, BertForMaskedLM

model = BertForMaskedLM(BertConfig()).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
scaler = torch.amp.GradScaler()
for step in range(3):
    tokens = torch.randint(0, 30522, (32, 256), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
