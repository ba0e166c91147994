"""JSON Schemas made into schemas that a mask enforces as they stand.

What can be said exactly in other words is; what cannot is left out, and named with its place.
"""
