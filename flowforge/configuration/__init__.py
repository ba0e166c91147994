"""What `flowforge.toml` says: the models of other servers, and routes to them."""

from flowforge.configuration.file import (
    Configuration,
    configuration_for,
    find_configuration,
    read_configuration,
)

__all__ = ["Configuration", "configuration_for", "find_configuration", "read_configuration"]
