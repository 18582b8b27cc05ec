"""Arrays of JAX on four devices of the host: python jax_arrays.py.

Prints {"arrays": [[shape, dtype, bytes on all devices], …], "held": bytes} of jax.live_arrays(), the same again after each line
read, and ends with its input. Arrays are made and deleted between the two.
"""
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


# They share the memory of what they are parts of.
PARTS = []


class State:
    def __init__(self, size):
        self.step = jnp.zeros((), jnp.int32)
        self.moments = [jnp.zeros((size, 512), jnp.float32), jnp.zeros((size, 512), jnp.bfloat16)]


def tell():
    arrays, held = [], 0
    for array in jax.live_arrays():
        part = int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
        bytes_of = part * len(array.devices())
        arrays.append([list(array.shape), str(array.dtype), bytes_of])
        held += 0 if any(array is part for part in PARTS) else bytes_of
    print(json.dumps({"pid": os.getpid(), "arrays": sorted(arrays), "held": held}), flush=True)


def main():
    params = {"w": jnp.ones((1024, 512), jnp.float32), "mask": jnp.ones((1024,), bool)}
    state = State(256)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    spread = NamedSharding(mesh, PartitionSpec(("data", "model"), None))
    halves = NamedSharding(mesh, PartitionSpec(None, "model"))
    copies = NamedSharding(mesh, PartitionSpec())
    batch = jax.device_put(jnp.ones((4096, 64), jnp.float16), spread)
    table = jax.device_put(jnp.ones((512, 128), jnp.float32), halves)
    scale = jax.device_put(jnp.ones((128, 128), jnp.float32), copies)
    outputs = []
    PARTS.extend(shard.data for shard in batch.addressable_shards)
    jax.block_until_ready([params, state.moments, batch, table, scale])
    tell()
    print("READY", flush=True)
    for _ in sys.stdin:
        outputs.append(params["w"] @ table)
        params["mask"].delete()
        jax.block_until_ready(outputs)
        tell()
    return batch, scale


if __name__ == "__main__":
    main()
