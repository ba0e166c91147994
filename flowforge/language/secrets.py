"""Secrets in expressions: where they may be read, and what stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.expression_nodes import Constant, FieldOf, Name
from flowforge.language.scope import Binding, Names
from flowforge.language.types import STRING, Field, Object
from flowforge.secrets.secret import Secret, SecretName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.language.expression_nodes import Node

SECRETS = "secrets"


def with_secrets(names: Names, secrets: Iterable[str]) -> Names:
    """The names in scope where secrets may be read, too."""
    fields = tuple(Field(name, STRING, True) for name in secrets)
    return Names({SECRETS: Binding("secrets", Object(fields, None))}, names)


def sealed(node: Node) -> Constant | None:
    """What stands for `secrets.NAME` in an expression: the secret, unopened; None for others."""
    if not isinstance(node, FieldOf) or not isinstance(node.subject, Name):
        return None
    if node.subject.name != SECRETS:
        return None
    return Constant(node.start, node.end, Secret(SecretName(node.field)))
