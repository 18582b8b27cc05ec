"""Checks on a real GPU that `memspy summary` names what fills it, in five common kinds of jobs.

    python scripts/check-summary-on-gpu.py MEMSPY [--jobs server,metrics,...] [--seconds N]
        [-o FOLDER]

Each job runs in its own process. After N seconds, `memspy summary` and `memspy tensors` run once
each; the expected text must be in the first three owner rows or in the findings. Prints the job's
longest stop and the commands' time. With -o, keeps the output for the documentation.
Jobs with missing libraries (transformers, peft, lightning, timm) are skipped and listed.
"""
import argparse
import pathlib
import re
import statistics
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


# Each with a regular expression to find in the first three rows or the findings.
JOBS = {
    "server": (server, r"sessions"),
    "lora": (lora, r"saved for backward|parameters of"),
    "lightning": (lightning_timm, r"saved for backward|optimizer state"),
    "metrics": (metrics, r"history\b.*loss"),
    "two": (two, r"(?i)other process|another process"),
}


def ask(memspy, *words):
    began = time.perf_counter()
    done = subprocess.run([memspy, *words], capture_output=True, text=True)
    return done.stdout, done.stderr, time.perf_counter() - began


def pauses(memspy, pid, looks):
    """The longest stop of the job, in ms, for each of several snapshots."""
    for _ in range(looks):
        text = "".join(ask(memspy, "tensors", "-p", str(pid))[:2])
        found = re.search(r"was stopped for ([\d.]+) (ms|s)", text)
        if found:
            yield float(found[1]) * (1000 if found[2] == "s" else 1)


def first_rows_and_findings(text):
    """The first three owner rows and the findings."""
    lines = text.splitlines()
    head = next((at for at, line in enumerate(lines) if "held by" in line), len(lines))
    rows = [line for line in lines[head + 1:] if re.match(r"\s*[\d.]+ [KMGT]?i?B ", line)][:3]
    return rows + [line for line in lines if line.startswith("* ")]


def check(name, memspy, process, wanted, args):
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(args.seconds)
    if process.poll() is not None:
        print(f"{name}: the job ended: {process.stderr.read()[-600:]}")
        return "ImportError" in process.stderr.read()
    summary, error, took = ask(memspy, "summary", "-p", str(process.pid))
    tensors, _, took_tensors = ask(memspy, "tensors", "-p", str(process.pid))
    found = any(re.search(wanted, line) for line in first_rows_and_findings(summary))
    lines = summary.splitlines()
    stops = sorted(pauses(args.memspy, process.pid, args.looks))
    if stops:
        print(f"{name}: {len(stops)} looks by tensors stopped the job for {statistics.median(stops):.1f} ms (median), at most {stops[-1]:.1f}")
    still = [line.strip() for line in (summary + tensors).splitlines() if "was stopped" in line]
    print(f"{name}: {'found' if found else 'NOT FOUND'}; summary took {took:.1f} s, {len(lines)} lines, widest "
          f"{max(map(len, lines), default=0)}; tensors took {took_tensors:.2f} s; {'; '.join(still)}", flush=True)
    if not found:
        print(summary, error)
    if args.output:
        folder = pathlib.Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(f"$ memspy summary -p {process.pid}\n{summary}{error}\n$ memspy tensors -p {process.pid}\n{tensors}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--seconds", type=float, default=12, help="of work before the summary")
    parser.add_argument("--looks", type=int, default=0, help="more looks by tensors, for the median of their stops")
    parser.add_argument("-o", "--output", help="folder for what was printed")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        JOBS[args.job][0]()
        return
    names = args.jobs.split(",")
    start = lambda name: subprocess.Popen([sys.executable, __file__, args.memspy, "--job", name], text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # They import in parallel and work one after the other.
    processes = {name: start(name) for name in names}
    ok = True
    for name, process in processes.items():
        if process.stdout.readline().strip() != "READY":
            print(f"{name}: left out: {process.stderr.read().strip().splitlines()[-1:]}")
            continue
        ok &= check(name, args.memspy, process, JOBS[name][1], args)
        process.kill()
        process.wait()
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
