"""The example of pytorch_memlab's README, as it stands there, without pytorch_memlab."""
import torch

def inner():
    torch.nn.Linear(100, 100).cuda()

def outer():
    linear = torch.nn.Linear(100, 100).cuda()
    linear2 = torch.nn.Linear(100, 100).cuda()
    inner()

outer()
