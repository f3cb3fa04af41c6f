"""torchrun for the workers of one machine: its elastic agent, which meets them on loopback and ends when its parent does.

`python -m tasks.agent PARENT ARGUMENTS`, the arguments as torchrun's. Its own rendezvous would listen on all interfaces,
without a password; this one is a store that listens on 127.0.0.1 alone.
"""

import socket
import sys

import torch.distributed.run
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from trainer.parent import end_with_parent

HOST = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """The meeting of one agent with itself; it keeps the store in which its workers find each other."""

    def __init__(self, run_id: str) -> None:
        listener = socket.create_server((HOST, 0))
        self.run_id, self.port = run_id, listener.getsockname()[1]
        self.store = TCPStore(HOST, self.port, is_master=True, multi_tenant=True, master_listen_fd=listener.detach())

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """The agent is the first of one; its workers reach the store at this address."""
        return RendezvousInfo(PrefixStore(self.run_id, self.store), 0, 1, RendezvousStoreInfo(HOST, self.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could come."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True


def meet(parameters: RendezvousParameters) -> RendezvousHandler:
    """What torchrun calls to make the meeting."""
    return LoopbackRendezvous(parameters.run_id)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    rendezvous_handler_registry.register("loopback", meet)
    torch.distributed.run.main(["--rdzv-backend", "loopback", "--rdzv-id", "night", *sys.argv[2:]])
