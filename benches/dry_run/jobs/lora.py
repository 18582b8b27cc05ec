"""LoRA with peft on a LLaMA of 1.1 billion parameters by configuration, bf16."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                     num_key_value_heads=4, vocab_size=32000)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
for step in range(3):
    tokens = torch.randint(0, 32000, (4, 1024), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
