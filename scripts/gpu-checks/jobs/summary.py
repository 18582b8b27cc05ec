"""The jobs of the check summary, each with another thing that fills the memory.

    python jobs/summary.py NAME

Prints READY, waits for a line, and works until it is killed.
"""
import subprocess
import sys
import time

LLAMA = dict(hidden_size=1024, intermediate_size=2752, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000,
             max_position_embeddings=1024)


def wait_for_go():
    print("READY", flush=True)
    sys.stdin.readline()


def server():
    """A server that keeps the key-value cache of every session."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).cuda().bfloat16().eval()
    wait_for_go()
    sessions = {}
    with torch.no_grad():
        for number in range(1_000_000):
            tokens = torch.randint(0, 32000, (1, 256), device="cuda")
            out = model(tokens, use_cache=True)
            sessions[f"user-{number}"] = out.past_key_values
            time.sleep(0.05)


def lora():
    """transformers' Trainer with LoRA."""
    import peft
    import torch
    import transformers

    wait_for_go()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            tokens = torch.randint(0, 32000, (512,))
            return {"input_ids": tokens, "labels": tokens}

    arguments = transformers.TrainingArguments(output_dir="/tmp/memspy-check", per_device_train_batch_size=8, bf16=True,
                                               max_steps=1_000_000, report_to=[], save_strategy="no", disable_tqdm=True,
                                               logging_steps=1000)
    transformers.Trainer(model=model, args=arguments, train_dataset=Texts()).train()


def lightning_timm():
    """Lightning with a vision transformer of timm."""
    import timm
    import torch
    from torch import nn
    try:
        import lightning
    except ImportError:
        import pytorch_lightning as lightning

    class Vision(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = timm.create_model("vit_base_patch16_224", num_classes=100)

        def training_step(self, batch, index):
            images, labels = batch
            return nn.functional.cross_entropy(self.model(images), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            return torch.randn(3, 224, 224), index % 100

    wait_for_go()
    trainer = lightning.Trainer(accelerator="gpu", devices=1, max_steps=1_000_000, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False)
    trainer.fit(Vision(), torch.utils.data.DataLoader(Images(), batch_size=64, num_workers=4))


def metrics():
    """A conv net that keeps its losses with their graphs."""
    import torch
    from torch import nn

    wait_for_go()
    blocks = []
    for i in range(6):
        blocks += [nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    history = {"loss": []}
    for step in range(1_000_000):
        images, labels = torch.randn(16, 3, 64, 64, device="cuda"), torch.randint(0, 10, (16,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward(retain_graph=step % 5 == 0)
        optimizer.step()
        if step % 5 == 0:
            history["loss"].append(loss)
        time.sleep(0.02)


def two():
    """Two processes on one card: this one trains, the other holds 20 GiB."""
    import torch

    wait_for_go()
    other = subprocess.Popen([sys.executable, "-c", "import sys, torch; x = torch.zeros(20 << 30, dtype=torch.uint8, device='cuda'); "
                                                    "print('HELD', flush=True); sys.stdin.read()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # ends with this process
    other.stdout.readline()
    model = torch.nn.Linear(8192, 8192).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        model(torch.randn(256, 8192, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)


if __name__ == "__main__":
    {"server": server, "lora": lora, "lightning": lightning_timm, "metrics": metrics, "two": two}[sys.argv[1]]()
