"""Every protocol on one port: connections, HTTP exchanges, and the RPC protocols over them."""
