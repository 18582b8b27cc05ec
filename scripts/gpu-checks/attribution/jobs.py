"""The jobs whose attribution is checked: training loops, servers and libraries, each with its own
allocation pattern.

A job is a function of a `Watched`. It calls that after each forward pass, while nothing else runs.
"""
import queue
import random
import statistics
import tempfile
import threading
import time

import torch
from torch import nn

class Done(Exception):
    """The job has completed its steps."""


class Watched:
    """Counts a job's steps after `begin`, and pauses in the last one, after `seconds` or later."""

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

    arguments = transformers.TrainingArguments(output_dir=tempfile.gettempdir(), per_device_train_batch_size=8, bf16=True, logging_steps=10,
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
    """Images of a new size at every step, with a new number of boxes."""
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
    """Convolutions in half precision with a scaled loss, clipped gradients and averaged weights."""
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


class Answering(nn.Module):
    """A decoder with a key-value cache, like a server's."""

    def __init__(self, width=256, layers=4):
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 4096)

    def forward(self, x, session):
        for key, value in zip(self.keys, self.values):
            k, v = key(x), value(x)
            session.append((k, v))
            x = x + torch.softmax(x @ k.transpose(-1, -2), dim=-1) @ v
        return self.head(x).argmax(-1)


def server(watched):
    """Four threads answer requests; the main thread distributes them and waits."""
    model, requests, sessions = Answering().cuda().eval(), queue.Queue(), [[] for _ in range(4)]

    def work(number):
        generator = random.Random(number)
        while True:
            tokens = requests.get()
            session = []
            with torch.no_grad():
                x = torch.randn(2, tokens, 256, device="cuda")
                for _ in range(3):
                    answer = model(x, session).cpu()
                    x = torch.cat([x, torch.randn(2, generator.randrange(1, 9), 256, device="cuda")], dim=1)
            sessions[number] = sessions[number][-40:] + session
            requests.task_done()

    for number in range(4):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    generator = random.Random(5)
    while True:
        for _ in range(16):
            requests.put(generator.randrange(16, 128))
        requests.join()
        watched.forward_done()


def loader(watched):
    """A separate thread prepares batches and copies them to the GPU; the main thread trains."""
    batches, gate = queue.Queue(3), threading.Lock()

    def load():
        generator = random.Random(3)
        while True:
            host = torch.randn(8, generator.randrange(32, 128), 256)
            with gate:
                batch = host.to("cuda", non_blocking=True)
                mask = (batch.mean(-1, keepdim=True) > 0).to(batch.dtype)
                batch = batch * mask
            batches.put(batch)

    threading.Thread(target=load, daemon=True).start()
    model = encoder(256, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        loss = model(batches.get()).square().mean()
        with gate:
            watched.forward_done()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


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
    "server": server,
    "loader": loader,
}
