"""What happened in a real run: events of hosts and devices, as profilers recorded them."""
