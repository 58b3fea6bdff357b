"""Objectives, selected by objective=NAME."""
