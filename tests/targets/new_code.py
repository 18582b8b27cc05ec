"""Compiles a function for each allocation, as fast as it can, until it is ended."""

import torch

number = 0
print("READY", flush=True)
while True:
    number += 1
    name = f"made_{number}"
    source = f"def {name}():\n    return torch.zeros({1000 + number % 300}, device='cuda')\nblock = {name}()"
    exec(compile(source, f"{name}.py", "exec"), {"torch": torch})
