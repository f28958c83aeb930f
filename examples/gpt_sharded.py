"""The GPT of gpt.py for models that do not fit on one device: sharded over the ranks, with the same loss.

    python examples/gpt_sharded.py --spawn 2
    torchrun --nproc-per-node 8 examples/gpt_sharded.py --layers 48 --width 4096 --dtype bf16 --recompute
    muster launch --hosts hosts.txt examples/gpt_sharded.py --replicas 2 --tensor 4 --shared /shared/run1

All ranks are a mesh of replicas x shards x tensor. Each weight is cut into as many parts as there are shards
(fully_shard, FSDP2), which are gathered block by block. --replicas 2 has two copies of all weights, so that
gathering stays among fewer ranks (HSDP). --tensor 4 lets four ranks compute each product together.
Checkpoints are sharded as well, are written while the training continues, and fit any other mesh.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpt import GPT, TYPES, Config, Training, draw_weights, options, train
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from muster.train import Job, ShardedCheckpoints, TrainError, run

# How the ranks of "tensor" divide a block: heads and hidden units, so that ranks exchange only sums.
BLOCK = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


@dataclass(frozen=True)
class ShardedConfig(Config):
    """The options of gpt.py and these."""

    replicas: int = 1  # copies of all weights
    tensor: int = 1  # ranks that compute each product together; neighbours, so of one host
    offload: bool = False  # weights, gradients and optimizer in host memory while they are not used
    shared: str = ""  # the folder of the checkpoints, on a shared disk or not; default OUT


class Sharded:
    """The model to call, as DistributedDataParallel is one."""

    def __init__(self, model: FSDPModule) -> None:
        self.sharded = model

    def __call__(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.sharded(tokens)  # type: ignore[operator]  # it is the GPT as well
        return logits

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sharded.set_requires_gradient_sync(False)
        yield
        self.sharded.set_requires_gradient_sync(True)


class ShardedTraining(Training):
    """A step of the sharded model, and its checkpoints."""

    config: ShardedConfig

    def __init__(self, config: ShardedConfig, job: Job) -> None:
        if job.device.type == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
            raise TrainError(f"sharding on a CPU needs torch 2.8 or later, this is {torch.__version__}")
        super().__init__(config, job)
        # Ranks that compute a product together read the same share of a batch.
        self.reader, self.readers = job.rank // config.tensor, job.world_size // config.tensor
        job.seed(config.seed, stream=self.reader)

    def make_model(self) -> GPT:
        """Build the model without memory, then give weights to one block after the other and shard it."""
        if self.config.compile or self.config.dtype == "fp16":
            raise TrainError("gpt_sharded.py has neither --compile nor --dtype fp16")
        mesh = self.make_mesh()
        with torch.device("meta"):
            gpt = GPT(self.config)
        torch.manual_seed(self.config.seed)
        self.place(gpt.embedding, "embedding", mesh, RowwiseParallel(input_layouts=Replicate()))
        for block in gpt.blocks:
            self.place(block, "block", mesh, BLOCK)
            fully_shard(block, **self.policy(mesh))
        self.place(gpt.head, "head", mesh, ColwiseParallel(output_layouts=Replicate()))
        self.model = Sharded(fully_shard(gpt, **self.policy(mesh)))
        return gpt

    def make_mesh(self) -> DeviceMesh:
        config, size = self.config, self.job.world_size
        if size % (config.replicas * config.tensor) or config.heads % config.tensor:
            raise TrainError(
                f"--replicas x --tensor must divide the number of ranks, {size}, and --tensor the number of "
                f"heads, {config.heads}; got {config.replicas} x {config.tensor}"
            )
        shards = size // (config.replicas * config.tensor)
        sizes = {"replicas": config.replicas, "shards": shards, "tensor": config.tensor}
        used = {name: number for name, number in sizes.items() if number > 1 or name == "shards"}
        return init_device_mesh(self.job.device.type, tuple(used.values()), mesh_dim_names=tuple(used))

    def place(self, module: nn.Module, name: str, mesh: DeviceMesh, plan: Any) -> None:
        """Draw the weights of `module`, as every rank does, and keep this rank's part of each product."""
        module.to_empty(device="cpu")  # a GPU would draw other weights
        draw_weights(module, self.config.layers, name)
        module.to(self.job.device)
        if self.config.tensor > 1:
            parallelize_module(module, mesh["tensor"], plan)

    def policy(self, mesh: DeviceMesh) -> dict[str, Any]:
        """Return the sharding: ranks, types, and the place of the weights."""
        kind = TYPES[self.config.dtype]
        over = ("replicas", "shards") if self.config.replicas > 1 else ("shards",)
        policy: dict[str, Any] = {
            "mesh": mesh[over],
            # Weights are gathered in the type of the products; gradients are added in float32.
            "mp_policy": MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32),
        }
        if self.config.offload:
            policy["offload_policy"] = CPUOffloadPolicy(pin_memory=self.job.device.type == "cuda")
        return policy

    def checkpoints(self, same: dict[str, Any]) -> ShardedCheckpoints:
        out = Path(self.config.shared) if self.config.shared else self.job.out
        return ShardedCheckpoints(self.job, out, same=same)


if __name__ == "__main__":
    run(train, config := options(ShardedConfig), ShardedTraining, spawn=config.spawn)
