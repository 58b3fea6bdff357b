"""Environments, selected by env=NAME."""
