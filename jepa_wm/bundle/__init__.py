"""One GGUF file is one bundle: schema (keys and tensors), reader, writer and stored types."""
