"""The in-process engine: sequences, pages and batches over one language model."""

if __name__ != "flowforge.engine":
    raise ImportError(f"import 'flowforge.engine', not {__name__!r}", name=__name__)
