"""`python -m surf2vec.trainer` as one of several workers on one card, started by torchrun: they exchange CUDA tensors by gloo.

NCCL refuses two workers on a card. So this shows the order of exchange and training on a card, not NCCL.
"""

import os

import torch.distributed as dist

from surf2vec.trainer.__main__ import end, main

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo")
    end(main())
