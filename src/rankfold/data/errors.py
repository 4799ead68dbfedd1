"""What can be wrong with data on disk. Every message ends with what to do."""

from __future__ import annotations


class DataError(Exception):
    """Data that cannot be used; catch this one to handle all of them."""


class MissingData(DataError):
    """Data that are in none of the places looked at."""


class DamagedData(DataError):
    """Data that are there, but incomplete, cut short or altered."""


class DownloadError(DataError):
    """Data that could not be fetched, or are not what they should be."""
