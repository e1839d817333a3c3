"""The synchronous flavour, generated from ``_async``; only ``_io`` is written by hand."""
