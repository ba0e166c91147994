"""Pages of documentation that are made from the code, so that they say what it does.

`python -m flowforge.reference docs` writes them into the folder `docs`.
"""
