"""What Go's HTTP/2 server makes of the bytes of clients: cases from seeds, for it and for ours."""
