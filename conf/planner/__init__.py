"""Planners, selected by planner=NAME."""
