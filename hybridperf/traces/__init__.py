"""What happened in a real run: events of the host and of the device, of one rank or several,
whoever wrote them down.
"""
