"""Tensors held in one particular way, and what is true of them.

    python tests/targets/holders_scenes.py SCENE [--device cpu|cuda]
    python tests/targets/holders_scenes.py --serve

Prints one line of JSON (see `scene_truth.py`) and READY. A line of input is answered with the truth again, which
is the same; the end of input ends it. `--list` prints the names of the scenes.

With `--serve` it prints their names and READY; a line `SCENE DEVICE` shows this one in a child, whose pid the truth says,
until the next line: importing PyTorch takes longer than most scenes.
"""
import argparse
import os
import sys

import handshake
import scene_truth
import scenes_autograd
import scenes_models
import scenes_python
import torch

SCENES = {scene.__name__: scene for module in (scenes_models, scenes_autograd, scenes_python) for scene in module.SCENES}


def run(scene, device, go_on):
    """Runs a scene; `go_on` is asked how long what it shows is to stay."""
    torch.manual_seed(0)
    shown = False

    def show(*expressions, **more):
        nonlocal shown
        shown = True
        frame = sys._getframe(1)
        handshake.ready(scene_truth.of(frame, expressions, scene=scene, device=device, **more))
        while go_on():
            handshake.ready(scene_truth.of(frame, expressions, scene=scene, device=device, **more))

    SCENES[scene](device, show)
    assert shown, f"{scene} has shown nothing"


def serve():
    print(*sorted(SCENES))
    handshake.ready()
    for scene, device in handshake.requests():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(scene, device, handshake.hold)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"{scene} on {device} ended with {status}"
        handshake.ready()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", choices=sorted(SCENES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--list", action="store_true", help="print the names of the scenes")
    parser.add_argument("--serve", action="store_true", help="show scenes that are asked for, one after the other")
    args = parser.parse_args()
    if args.serve:
        serve()
    elif args.list or args.scene is None:
        print(*sorted(SCENES))
    else:
        requests = handshake.requests()
        run(args.scene, args.device, lambda: next(requests, None))


if __name__ == "__main__":
    main()
