"""Checks on a machine with a real GPU which stacks a followed recording gives the memory to, and what following costs.

    python scripts/check-attribution-on-gpu.py MEMSPY [--jobs trainer,lora,...] [--steps N] [--after SECONDS] [--seconds SECONDS] [--words "--cpu 25"]

For its speed, each job runs by itself, with MEMSPY following it, and by itself again, in one process. For the truth, it
runs in a process of its own (what an earlier job left behind would be older than the recording) beside MEMSPY and
PyTorch's own memory history with Python stacks. There it stands still in the middle of its last
step, after the forward pass, and both are compared: sum over stacks of the smaller of the two. "proven" are the bytes that
memspy says are on the stack that allocated them; "wrong among proven" has to be about 0. Bytes that the autograd engine's
C++ threads allocated have no Python stack in the history; memspy has to give them to [autograd thread].
Besides the live bytes every allocation is compared, freed or not: the shares of all bytes that each stack allocated (memspy begins a little before
the history does: proven bytes count as wrong from 2 % more on). The history has what was asked for; how large the block was is replayed
(history_blocks.py).
With --after, MEMSPY and the history begin that long after the job, as when one attaches to a job that runs: compared is what was
allocated since, and what is older has to be [before recording].
Jobs whose libraries (transformers, peft, lightning, timm, torchvision) are missing are left out, and named.
"""
import argparse
import collections
import gzip
import json
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

from history_blocks import with_block_sizes

FOLDER = tempfile.mkdtemp(prefix="memspy-check-")
ENGINE = "[autograd thread]"
BEFORE = "[before recording]"
# Allocations and frees since memspy attached are fewer.
HISTORY = 2_000_000


class Done(Exception):
    """The job has made its steps."""


class Watched:
    """Counts the steps of one run of a job, from when `begin` was called on, and stands still in the last, after `seconds` or later."""

    def __init__(self, steps, at_last=None, begin=None, after=0, seconds=0):
        self.steps, self.seconds, self.at_last, self.times = steps, seconds, at_last, []
        self.begin, self.begin_at = begin, time.perf_counter() + after

    def forward_done(self):
        if self.begin:
            if time.perf_counter() < self.begin_at:
                return
            self.begin = self.begin()
        self.times.append(time.perf_counter())
        if len(self.times) >= self.steps and self.times[-1] - self.times[0] >= self.seconds:
            torch.cuda.synchronize()
            if self.at_last:
                self.at_last()
            raise Done

    def seconds_a_step(self):
        late = self.times[len(self.times) // 3:]
        return statistics.median(b - a for a, b in zip(late, late[1:]))


class Recording:
    """memspy following this process: attached after construction."""

    def __init__(self, memspy, words):
        self.memspy, self.trace, self.said = memspy, os.path.join(FOLDER, f"{time.monotonic_ns()}.bin"), []
        command = [memspy, "record", "-p", str(os.getpid()), "-o", self.trace, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if "attached to process" in line:
                time.sleep(0.5)
                return
        raise SystemExit("memspy did not attach: " + " | ".join(self.said))

    def stop(self):
        self.process.send_signal(2)
        self.said += self.process.stderr.read().splitlines()
        self.process.wait()

    def stacks(self, *words):
        """Bytes by stack: innermost frame first, as (file, line)."""
        command = [self.memspy, "flame", self.trace, "-f", "collapsed", "-o", "-", "--full-filenames", *words]
        flame = subprocess.run(command, capture_output=True, text=True)
        if flame.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {flame.stderr}")
        stacks = collections.Counter()
        for line in flame.stdout.splitlines():
            path, count = line.rsplit(" ", 1)
            frames = path.split(";")
            places = [re.fullmatch(r".* \((.*):(\d+)\)", frame) for frame in frames]
            if ENGINE in frames:
                key = (ENGINE,)
            elif BEFORE in frames:
                key = (BEFORE,)
            elif all(places):
                key = tuple((place[1], int(place[2])) for place in reversed(places))
            else:
                key = (frames[-1],)
            stacks[key] += int(count)
        return stacks

    def followed(self):
        said = " ".join(self.said)
        found = re.search(r"followed: (.*?)(?:GPU|no GPU|warning|Next|$)", said)
        return found[1].strip() if found else "it was not followed"


def places(of):
    return tuple((frame["filename"], frame["line"]) for frame in of.get("frames", []))


def at_the_peak(events, older):
    """Live bytes by stack at the moments when the most was allocated, as the history of one device has them: `older` bytes are older than it.

    Of moments that are equally high it is those with the fewest older bytes: of these nobody knows the stack. In an iteration there can be several:
    what is freed in one call and made in the next is often of one size. Each of them is the peak; those that are alike are given once."""

    def moments():
        alive, left = {}, older
        total = left
        for event in events:
            if event["action"] == "alloc":
                alive[event["addr"]] = event
                total += event["block"]
            elif event["action"] == "free_requested":
                left -= 0 if alive.pop(event["addr"], None) else event["block"]
                total -= event["block"]
            yield total, alive, left

    highest = min(((-total, left) for total, _, left in moments()), default=None)
    peaks = {}
    for total, alive, left in moments():
        if (-total, left) == highest:
            stacks = collections.Counter({(BEFORE,): left})
            for event in alive.values():
                stacks[places(event) or (ENGINE,)] += event["block"]
            peaks[frozenset(stacks.items())] = stacks
    return list(peaks.values()) or [collections.Counter()]


def truth(older, before):
    """Live bytes by stack, all allocated bytes by stack, and the live bytes at each peak, as PyTorch's own history has them.

    `before` is the snapshot before the history."""
    stacks, every = collections.Counter(), collections.Counter()
    snapshot, device = torch.cuda.memory._snapshot(), torch.cuda.current_device()
    unknown = with_block_sizes(snapshot["device_traces"][device], before, device)
    if unknown:
        print(f"    of {unknown} allocations the block is not known, only what was asked for")
    # Neither what the engine's threads allocated has frames, nor what is older than the history.
    since, last, unlike = set(), {}, 0
    for event in snapshot["device_traces"][device]:
        if event["action"] == "alloc":
            since.add(event["addr"])
            last[event["addr"]] = event["block"]
            every[places(event) or (ENGINE,)] += event["block"]
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                is_older = block["address"] not in since
                stacks[places(block) or (BEFORE if is_older else ENGINE,)] += block["size"]
                unlike += last.get(block["address"], block["size"]) != block["size"]
    if unlike:
        print(f"    {unlike} blocks are larger or smaller than replayed from the history")
    return stacks, every, at_the_peak(snapshot["device_traces"][device], older)


def overlap(ours, theirs):
    return sum(min(ours[key], theirs[key]) for key in ours)


def in_shares(stacks, of):
    total = sum(of.values())
    return collections.Counter({key: count / max(total, 1) for key, count in stacks.items()})


def by(stacks, key):
    merged = collections.Counter()
    for stack, count in stacks.items():
        merged[key(stack)] += count
    return merged


LIBRARIES = ("site-packages", "/lib/python", "/torchinductor_")


def own_line(stack):
    """The innermost frame outside of installed libraries, and of what torch.compile wrote."""
    own = [frame for frame in stack if isinstance(frame, tuple) and not any(part in frame[0] for part in LIBRARIES)]
    return own[0] if own else stack[0]


def run(job, watched):
    torch.cuda.empty_cache()
    try:
        job(watched)
    except Done:
        pass
    return watched


def words(args):
    # Without words: the default options, which follow.
    return shlex.split(args.words)


def check_speed(name, job, args):
    plain = run(job, Watched(args.steps)).seconds_a_step()
    recording = Recording(args.memspy, words(args))
    beside = run(job, Watched(args.steps)).seconds_a_step()
    recording.stop()
    again = run(job, Watched(args.steps)).seconds_a_step()
    rates = [1 / seconds for seconds in (plain, beside, again)]
    print(f"{name}: {rates[0]:.2f} steps a second, {rates[1]:.2f} followed, {rates[2]:.2f} not followed: "
          f"{2 * rates[1] / (rates[0] + rates[2]):.2f} of its speed")
    print(f"    {recording.followed()}", flush=True)


def check_truth(name, job, args):
    held = {}

    def begin():
        held["recording"] = Recording(args.memspy, words(args))
        held["older"], held["before"] = torch.cuda.memory_allocated(), torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=HISTORY)

    def at_last():
        held["truth"] = truth(held["older"], held["before"])
        time.sleep(1.5)
        held["recording"].stop()

    if args.after:
        run(job, Watched(args.steps, at_last, begin, args.after, args.seconds))
    else:
        begin()
        run(job, Watched(args.steps, at_last, seconds=args.seconds))
    torch.cuda.memory._record_memory_history(enabled=None)
    recording = held["recording"]
    theirs, every, peaks = held["truth"]
    # Samples know nothing for certain, and only what is alive.
    is_followed = not recording.followed().startswith("it was not")
    ours, proven = recording.stacks("--at", "end"), recording.stacks("--at", "end", "--certain") if is_followed else collections.Counter()
    older = [stacks.pop((BEFORE,), 0) for stacks in (theirs, ours)]
    if args.after:
        print(f"{name}, attached after {args.after:g} s: {older[0]:,} bytes are older, memspy {older[1]:,}")
    total = sum(theirs.values())
    sure = sum(proven.values())
    wrong = sum(max(0, count - theirs[key]) for key, count in proven.items())
    share = lambda part, of: f"{100 * part / (of or 1):6.2f} %"
    print(f"{name}: {total:,} live bytes in {len(theirs)} stacks, memspy {sum(ours.values()):,}")
    print(f"    right full stack {share(overlap(ours, theirs), total)}, innermost line "
          f"{share(overlap(by(ours, lambda s: s[0]), by(theirs, lambda s: s[0])), total)}, line of the program "
          f"{share(overlap(by(ours, own_line), by(theirs, own_line)), total)}")
    print(f"    proven {share(sure, total)}, wrong among proven {share(wrong, sure)}")
    in_all, certain = [recording.stacks("--total-allocated", *more) if is_followed else collections.Counter() for more in ([], ["--certain"])]
    ours_of_all, theirs_of_all, certain_of_all = in_shares(in_all, in_all), in_shares(every, every), in_shares(certain, in_all)
    wrong_of_all = sum(max(0, part - 1.02 * theirs_of_all[key]) for key, part in certain_of_all.items())
    print(f"    every allocation: {sum(every.values()):,} bytes, memspy {sum(in_all.values()):,}; right full stack "
          f"{share(overlap(ours_of_all, theirs_of_all), 1)}, line of the program "
          f"{share(overlap(by(ours_of_all, own_line), by(theirs_of_all, own_line)), 1)}, proven {share(sum(certain_of_all.values()), 1)}, "
          f"wrong among proven {share(wrong_of_all, sum(certain_of_all.values()))}")
    at_peak, sure_at_peak = recording.stacks(), recording.stacks("--certain") if is_followed else collections.Counter()
    # memspy shows one of them.
    highest = max(peaks, key=lambda peak: overlap(at_peak, peak))
    before = [stacks[BEFORE,] for stacks in (highest, at_peak)]
    at_peak.pop((BEFORE,), None)
    compared = collections.Counter({key: count for key, count in highest.items() if key != (BEFORE,)})
    total = sum(compared.values())
    sure, wrong = sum(sure_at_peak.values()), sum(max(0, count - 1.02 * compared[key]) for key, count in sure_at_peak.items())
    print(f"    at the peak{f', one of {len(peaks)} equally high' if len(peaks) > 1 else ''}: {total + before[0]:,} bytes, "
          f"memspy {sum(at_peak.values()) + before[1]:,}; right full stack {share(overlap(at_peak, compared), total)}, "
          f"line of the program {share(overlap(by(at_peak, own_line), by(compared, own_line)), total)}, proven {share(sure, total)}, "
          f"wrong among proven {share(wrong, sure)}")
    missing = {key: count - ours[key] for key, count in theirs.items() if count > ours[key]}
    extra = {key: count - theirs[key] for key, count in ours.items() if count > theirs[key]}
    for what, stacks in (("missing on", missing), ("too much on", extra)):
        for key, count in sorted(stacks.items(), key=lambda item: -item[1])[:args.show]:
            inner = " < ".join(f"{os.path.basename(f[0])}:{f[1]}" if isinstance(f, tuple) else f for f in key[:4])
            print(f"      {count:>15,} {what} {inner}")
    if args.save:
        file = os.path.join(args.save, re.sub(r"[, ]+", "-", name))
        shutil.copy(recording.trace, file + ".bin")
        as_list = lambda stacks: [[list(stack) if stack != (ENGINE,) else [], size] for stack, size in stacks.items()]
        for kind, saved in (("truth", as_list(theirs)), ("every", as_list(every)), ("peaks", [as_list(peak) for peak in peaks])):
            with gzip.open(f"{file}.{kind}.json.gz", "wt") as out:
                json.dump(saved, out)
    print(f"    {recording.followed()}", flush=True)


def llama(transformers):
    config = transformers.LlamaConfig(hidden_size=1024, intermediate_size=2752, num_hidden_layers=12, num_attention_heads=16,
                                      vocab_size=32000, max_position_embeddings=1024)
    return transformers.LlamaForCausalLM(config)


def trainer(watched, lora=False, checkpointing=False):
    import transformers
    model = llama(transformers)
    if lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        if checkpointing:
            model.enable_input_require_grads()

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            tokens = torch.randint(0, 32000, (512,))
            return {"input_ids": tokens, "labels": tokens}

    class Trainer(transformers.Trainer):
        def compute_loss(self, *given, **named):
            loss = super().compute_loss(*given, **named)
            watched.forward_done()
            return loss

    arguments = transformers.TrainingArguments(output_dir=FOLDER, per_device_train_batch_size=8, bf16=True, logging_steps=10,
                                               max_steps=10_000, report_to=[], save_strategy="no", disable_tqdm=True,
                                               gradient_checkpointing=checkpointing)
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()


def lightning(watched):
    import timm
    try:
        import lightning
    except ImportError:
        import pytorch_lightning as lightning

    class Vision(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = timm.create_model("vit_small_patch16_224", num_classes=100)

        def training_step(self, batch, index):
            images, labels = batch
            loss = nn.functional.cross_entropy(self.model(images), labels)
            watched.forward_done()
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            return torch.randn(3, 224, 224), index % 100

    lightning.Trainer(accelerator="gpu", devices=1, max_steps=10_000, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False).fit(Vision(), torch.utils.data.DataLoader(Images(), batch_size=32))


def generate(watched):
    import transformers
    model = llama(transformers).cuda().to(torch.bfloat16).eval()
    with torch.no_grad():
        while True:
            tokens = torch.randint(0, 32000, (4, 64), device="cuda")
            cache = None
            for _ in range(8):
                out = model(tokens, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                tokens = out.logits[:, -1:].argmax(-1)
            watched.forward_done()


def loop(watched, model, make_batch, optimizers, accumulate=1):
    model.cuda()
    made = [make(model.parameters()) for make in optimizers]
    step = 0
    while True:
        step += 1
        loss = model(make_batch()).float().square().mean()
        watched.forward_done()
        loss.backward()
        if step % accumulate == 0:
            for optimizer in made:
                optimizer.step()
            for optimizer in made:
                optimizer.zero_grad(set_to_none=True)


def encoder(width=512, layers=6):
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def transformer(watched):
    loop(watched, encoder(), lambda: torch.randn(16, 128, 512, device="cuda"), [torch.optim.AdamW])


def accumulation(watched):
    loop(watched, encoder(), lambda: torch.randn(16, 128, 512, device="cuda"), [torch.optim.AdamW], accumulate=4)


def two_optimizers(watched):
    half = lambda kind: lambda parameters: kind(list(parameters)[::2] if kind is torch.optim.AdamW else list(parameters)[1::2], lr=1e-4)
    loop(watched, encoder(), lambda: torch.randn(16, 128, 512, device="cuda"), [half(torch.optim.AdamW), half(torch.optim.SGD)])


def conv_net(watched):
    blocks = []
    for i in range(6):
        blocks += [nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    loop(watched, nn.Sequential(*blocks), lambda: torch.randn(16, 3, 64, 64, device="cuda"), [torch.optim.Adam])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(256, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 256)

    def forward(self, batch):
        return self.head(self.lstm(batch)[0])


def lstm(watched):
    loop(watched, Recurrent(), lambda: torch.randn(32, 64, 256, device="cuda"), [torch.optim.Adam])


def detection(watched):
    """Images of other sizes at every step, with other numbers of boxes."""
    import torchvision
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=320)
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    generator = random.Random(1)
    while True:
        images, targets = [], []
        for _ in range(4):
            height, width, boxes = generator.randrange(240, 480), generator.randrange(240, 480), generator.randrange(1, 8)
            images.append(torch.rand(3, height, width, device="cuda"))
            corner = torch.rand(boxes, 2, device="cuda") * 100
            targets.append({"boxes": torch.cat([corner, corner + 20 + torch.rand(boxes, 2, device="cuda") * 100], dim=1),
                            "labels": torch.randint(1, 5, (boxes,), device="cuda")})
        loss = sum(model(images, targets).values())
        watched.forward_done()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def compiled(watched):
    loop(watched, torch.compile(encoder().cuda()), lambda: torch.randn(16, 128, 512, device="cuda"), [torch.optim.AdamW])


def mixed_precision(watched):
    """Convolutions in half precision with a scaled loss, clipped gradients and an average of the weights beside them."""
    import torchvision
    model = torchvision.models.resnet50(num_classes=100).cuda()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    while True:
        images, labels = torch.randn(32, 3, 160, 160, device="cuda"), torch.randint(0, 100, (32,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        watched.forward_done()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)


def texts_of_all_lengths(watched):
    """A language model whose batches are as long as their longest text."""
    import transformers
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=8, n_embd=512, n_head=8)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 100, 10_000)
    generator = random.Random(1)
    while True:
        lengths = [generator.randrange(32, 384) for _ in range(8)]
        tokens = nn.utils.rnn.pad_sequence([torch.randint(0, 50_000, (length,)) for length in lengths], batch_first=True).cuda()
        mask = (torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, attention_mask=mask.long(), labels=tokens.masked_fill(~mask, -100)).loss
        watched.forward_done()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


JOBS = {
    "trainer": trainer,
    "trainer, LoRA": lambda watched: trainer(watched, lora=True),
    "trainer, checkpointing": lambda watched: trainer(watched, checkpointing=True),
    "lightning and timm": lightning,
    "generate": generate,
    "transformer": transformer,
    "conv net": conv_net,
    "lstm": lstm,
    "accumulation": accumulation,
    "two optimizers": two_optimizers,
    "detection": detection,
    "compiled": compiled,
    "mixed precision": mixed_precision,
    "texts of all lengths": texts_of_all_lengths,
}

PARTS = {"speed": check_speed, "truth": check_truth}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--jobs", default=",".join(name for name in JOBS if "," not in name) + ",trainer+LoRA,trainer+checkpointing",
                        help="of: " + "; ".join(JOBS) + " (write + for the comma in a name)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--after", type=float, default=0, help="seconds after the beginning of the job at which memspy attaches")
    parser.add_argument("--seconds", type=float, default=0, help="how long each job runs at least for its truth")
    parser.add_argument("--show", type=int, default=3, help="stacks shown that differ most")
    parser.add_argument("--words", default="", help="more words for 'memspy record' [default: none, which follows]")
    parser.add_argument("--save", help="a folder for the traces and the truth beside each")
    parser.add_argument("--part", choices=PARTS, help="only this, in this process")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    if args.part:
        return part(args)
    print(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "gpu": torch.cuda.get_device_name(),
                      "kernel": os.uname().release, "processors": os.cpu_count()}), flush=True)
    if args.save:
        os.makedirs(args.save, exist_ok=True)
    failed = []
    for name in args.jobs.split(","):
        for which in PARTS:
            command = [sys.executable, *sys.argv, "--jobs", name, "--part", which]
            if subprocess.run(command).returncode:
                failed.append(f"{name} ({which})")
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


def part(args):
    name = args.jobs.replace("+", ", ")
    try:
        PARTS[args.part](name, JOBS[name], args)
    except ImportError as error:
        print(f"{name}: left out, {error}", flush=True)


if __name__ == "__main__":
    main()
