"""Pictures, clips and arrays on disk: read one at a time, written whole or not at all."""
