"""The base class of all schemas."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document of the API. Reads rows by their attributes, and refuses unknown fields."""

    model_config = ConfigDict(from_attributes=True, extra="forbid")

    @classmethod
    def from_row(cls, row: object, **more: Any) -> Self:
        """Create a document from a database row.

        Args:
            row: The row, whose columns have the names of the fields.
            more: Values of fields that the row does not have.
        """
        columns = cls.model_fields.keys() - more.keys()
        return cls(**{name: getattr(row, name) for name in columns}, **more)
