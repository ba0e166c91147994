"""Models of OpenAI-compatible servers as a backend: conversations are lists of messages."""
