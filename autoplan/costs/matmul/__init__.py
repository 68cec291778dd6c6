"""One matrix product on one device and on several: bytes, memory, time, lower bounds."""
