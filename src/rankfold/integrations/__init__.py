"""Callbacks for training frameworks: optional, and never imported by the rest of the library."""
