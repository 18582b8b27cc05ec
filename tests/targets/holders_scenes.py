"""Tensors held in one particular way, and what is true of them.

    python tests/targets/holders_scenes.py SCENE [--device cpu|cuda]

Prints one line of JSON (see `scene_truth.py`) and READY. A line of input is answered with the truth again, which
is the same; the end of input ends it. `--list` prints the names of the scenes.
"""
import argparse
import sys

import handshake
import scene_truth
import scenes_autograd
import scenes_models
import scenes_python
import torch

SCENES = {scene.__name__: scene for module in (scenes_models, scenes_autograd, scenes_python) for scene in module.SCENES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", choices=sorted(SCENES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--list", action="store_true", help="print the names of the scenes")
    args = parser.parse_args()
    if args.list or args.scene is None:
        print(*sorted(SCENES))
        return
    torch.manual_seed(0)
    shown = False

    def show(*expressions, **more):
        nonlocal shown
        shown = True
        frame = sys._getframe(1)
        handshake.ready(scene_truth.of(frame, expressions, scene=args.scene, device=args.device, **more))
        for _ in handshake.requests():
            handshake.ready(scene_truth.of(frame, expressions, scene=args.scene, device=args.device, **more))

    SCENES[args.scene](args.device, show)
    assert shown, f"{args.scene} has shown nothing"


if __name__ == "__main__":
    main()
