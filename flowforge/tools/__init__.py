"""Tools that a workflow calls: Python functions, their arguments checked, their time limited."""
