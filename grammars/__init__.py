"""What may be said: constraints compiled from JSON Schema into token masks."""

if __name__ != "flowforge.grammars":
    raise ImportError(f"import 'flowforge.grammars', not {__name__!r}", name=__name__)
