"""Interleaving fuzz: the pipelined loop on virtual streams, in thousands of legal orders (`python -m tests.fuzz`)."""
