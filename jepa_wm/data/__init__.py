"""Bundles that ship with the package."""
