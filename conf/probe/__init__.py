"""Linear probes of environments, selected with env=NAME."""
