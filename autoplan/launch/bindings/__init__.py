"""Tables of bindings of frameworks, and what reads, writes, edits and checks by them."""
