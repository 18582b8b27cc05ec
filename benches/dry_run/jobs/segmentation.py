"""Segmentation by DeepLabV3 on a ResNet-50, with an evaluation after each step."""
import torch
import torchvision

model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for step in range(3):
    model.train()
    images = torch.randn(8, 3, 384, 384, device="cuda")
    labels = torch.randint(0, 21, (8, 384, 384), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images)["out"], labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.randn(16, 3, 384, 384, device="cuda"))["out"].argmax(1)
