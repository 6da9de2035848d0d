"""The network over libp2p: `protocol.network.interface.Network` on real sockets.

Importing this package is light; libp2p itself (0.8 s, 80 MiB) is imported when a network starts.
"""

from protocol.network.libp2p.host import PortBusy
from protocol.network.libp2p.network import Libp2pNetwork, open_network
from protocol.network.libp2p.settings import NetworkSettings

__all__ = ["Libp2pNetwork", "NetworkSettings", "PortBusy", "open_network"]
