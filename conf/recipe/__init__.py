"""Training recipes, selected by recipe=NAME."""
