"""Experiments: parts built from options, and what is written about a run. Shared by the leaves."""
