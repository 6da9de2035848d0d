"""The network over libp2p: `protocol.network.interface.Network` on real sockets.

Importing this package is light; libp2p itself (0.8 s, 80 MiB) is imported when a network starts.
"""

from protocol.network.libp2p.network import Libp2pNetwork, PortBusy, open_network

__all__ = ["Libp2pNetwork", "PortBusy", "open_network"]
