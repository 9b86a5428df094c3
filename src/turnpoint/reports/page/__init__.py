"""One self-contained page of a run: its curves, its groups, its trees, token by token."""
