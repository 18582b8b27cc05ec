"""A vision transformer (ViT-B/16), AdamW."""
import torch
import torchvision

model = torchvision.models.vit_b_16().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(3):
    images = torch.randn(48, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (48,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
