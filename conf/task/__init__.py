"""Configuration group."""
