"""The terminal UI: it attaches to runs and sees events and statistics, never a tensor."""

if __name__ != "flowforge.tui":
    raise ImportError(f"import 'flowforge.tui', not {__name__!r}", name=__name__)
