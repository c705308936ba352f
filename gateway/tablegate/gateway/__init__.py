"""Gateways: restore tables from changelogs and answer queries over gRPC."""
