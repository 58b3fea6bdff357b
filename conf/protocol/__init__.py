"""Protocols, selected by protocol=NAME."""
