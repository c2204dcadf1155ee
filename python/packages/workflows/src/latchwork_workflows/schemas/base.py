"""The base class of all schemas."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document of the API. Reads rows by their attributes, and refuses unknown fields."""

    model_config = ConfigDict(from_attributes=True, extra="forbid")
