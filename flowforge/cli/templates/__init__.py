"""Workflows to start from, as `flowforge init` writes them."""
