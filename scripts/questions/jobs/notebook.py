"""The cells of a notebook, as Jupyter's kernel runs them (with IPython)."""
import sys

from IPython.core.interactiveshell import InteractiveShell

CELLS = [
    "import torch\nfrom gpt import GPT\nmodel = GPT(width=1024, layers=12, heads=16).cuda()",
    "tokens = torch.randint(0, 32000, (8, 512), device='cuda')\nmodel(tokens)",
    "def predict(tokens):\n    hidden = model.hidden(tokens)\n    return model.head(hidden[:, :, :100])\n\npredict(tokens)",  # raises an error
    "del model, tokens\ntorch.cuda.empty_cache()",
]

shell = InteractiveShell.instance()
for cell in CELLS:
    shell.run_cell(cell, store_history=True)
print("the cells are done", flush=True)
sys.stdin.read()
