"""A U-Net of a diffusion model, with attention at the lower resolutions, and an average of its weights."""
import copy

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv_1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv_2 = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(512, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, time):
        y = self.conv_1(functional.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv_2(functional.silu(self.norm_2(y)))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.mix = nn.MultiheadAttention(width, 8, batch_first=True)

    def forward(self, x):
        rows = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.mix(rows, rows, rows, need_weights=False)[0].transpose(1, 2).view_as(x)


class UNet(nn.Module):
    def __init__(self, widths=(128, 256, 384)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 512), nn.SiLU(), nn.Linear(512, 512))
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, self.up, width = nn.ModuleList(), nn.ModuleList(), widths[0]
        for level, after in enumerate(widths):
            attention = Attention(after) if level else nn.Identity()
            self.down.append(nn.ModuleList([Residual(width, after), attention, nn.Conv2d(after, after, 3, 2, 1)]))
            width = after
        self.middle = nn.ModuleList([Residual(width, width), Attention(width), Residual(width, width)])
        for level, after in reversed(list(enumerate(widths))):
            attention = Attention(after) if level else nn.Identity()
            self.up.append(nn.ModuleList([Residual(width + after, after), attention]))
            width = after
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, time):
        time, x, kept = self.time(time), self.first(x), []
        for residual, attention, smaller in self.down:
            x = attention(residual(x, time))
            kept.append(x)
            x = smaller(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time)), time)
        for residual, attention in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = attention(residual(torch.cat([x, kept.pop()], 1), time))
        return self.last(x)


model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(3):
    images = torch.randn(32, 3, 64, 64, device="cuda")
    noise, time = torch.randn_like(images), torch.rand(32, 1, device="cuda")
    loss = functional.mse_loss(model(images + noise * time[:, :, None, None], time), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters()):
            kept.lerp_(new, 0.01)
