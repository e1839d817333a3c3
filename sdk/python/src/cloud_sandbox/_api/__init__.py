"""The REST API as requests to send and answers to read, without any connection.

Every function makes a :class:`~.call.Call`: a request that knows how to read its
answer. Transports, synchronous or not, only carry them.
"""
