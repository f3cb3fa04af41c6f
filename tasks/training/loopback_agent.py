"""Runs torchrun's elastic agent for the workers of one machine, on loopback only. It ends when its parent does.

`python -m surf2vec.tasks.training.loopback_agent PARENT ARGUMENTS`, with torchrun's arguments. torchrun's own rendezvous would
listen on all interfaces, without a password. Its handler of SIGTERM raises at any point of the agent, and a second signal could
leave the agent without a lock that it waits for; here SIGTERM sets a flag, which the agent checks when it polls the workers.
"""

import signal
import socket
import sys
import threading

import torch.distributed.run
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from surf2vec.trainer.system.signals import end_with_parent, stop_on_sigterm

HOST = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of a single agent; it owns the store in which its workers find each other.

    stop: set if the agent is to end its workers and itself.
    """

    def __init__(self, run_id: str, stop: threading.Event) -> None:
        listener = socket.create_server((HOST, 0))
        self.run_id, self.stop, self.port = run_id, stop, listener.getsockname()[1]
        self.store = TCPStore(HOST, self.port, is_master=True, multi_tenant=True, master_listen_fd=listener.detach())

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return rank 0 of 1 and the address at which workers reach the store."""
        self._raise_if_stopped()
        return RendezvousInfo(PrefixStore(self.run_id, self.store), 0, 1, RendezvousStoreInfo(HOST, self.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: no other agent can join."""

    def num_nodes_waiting(self) -> int:
        """Return 0. The agent calls this each time that it polls its workers."""
        self._raise_if_stopped()
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True

    def _raise_if_stopped(self) -> None:
        if self.stop.is_set():
            raise SignalException("the agent was asked to end", signal.SIGTERM)


def main(parent: int, arguments: list[str]) -> None:
    """Run torchrun with these arguments until its workers or `parent` have ended. Exits with 143 if it was stopped."""
    with stop_on_sigterm() as stop:
        end_with_parent(parent)

        def meet(parameters: RendezvousParameters) -> RendezvousHandler:
            return LoopbackRendezvous(parameters.run_id, stop)

        rendezvous_handler_registry.register("loopback", meet)
        own = ["--rdzv-backend", "loopback", "--rdzv-id", "night", "--signals-to-handle", "SIGINT"]
        try:
            torch.distributed.run.main([*own, *arguments])
        except SignalException as error:
            print(f"stopped: {error}", file=sys.stderr)
            sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
