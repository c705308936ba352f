"""The RPC protocols: gRPC, gRPC-Web and Connect, over HTTP exchanges."""
