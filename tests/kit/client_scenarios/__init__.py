"""What clients of all languages must show: one file of scenarios, a gateway that they happen to, and the clients."""
