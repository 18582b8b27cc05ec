"""EfficientNetV2-S in bf16 autocast and channels-last, RMSprop."""
import torch
import torchvision

model = torchvision.models.efficientnet_v2_s().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(model.parameters(), 0.01, momentum=0.9)
for step in range(3):
    images = torch.randn(48, 3, 300, 300, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (48,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
