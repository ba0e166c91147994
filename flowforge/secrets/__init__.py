"""Secrets: named in files, read from the environment, put in at the last moment, told nowhere."""
