"""The asynchronous flavour. The synchronous one is generated from it.

Only ``_io`` is written for each by hand. After a change here run
``python scripts/generate_sync.py``.
"""
