"""How far apart the torch runtime, the specification and a reference implementation are."""
