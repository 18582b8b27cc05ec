"""Whisper (small's size) by configuration, fused AdamW, gradient checkpointing."""
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
                       decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
model = WhisperForConditionalGeneration(config).cuda().train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for step in range(3):
    sound = torch.randn(8, 80, 3000, device="cuda")
    words = torch.randint(0, 50000, (8, 64), device="cuda")
    loss = model(input_features=sound, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
