"""Load for OpenAI-compatible servers: what is asked, when, and how long the answers took."""
