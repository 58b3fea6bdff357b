"""What planning needs to know of an environment; follows env=NAME."""
