"""The network over libp2p: `protocol.network.Network` on real sockets.

Importing this package is light; libp2p itself (0.8 s, 80 MiB) is imported when a network starts.
"""

from protocol.libp2p_network.network import Libp2pNetwork, PortBusy, open_network

__all__ = ["Libp2pNetwork", "PortBusy", "open_network"]
