"""Configuration, YAML only; a package so that Hydra finds it when installed."""
