"""Planners, one file each; ``conf/planner/*.yaml`` names them, so a new one edits nothing here."""
