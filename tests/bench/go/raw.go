package main

import "google.golang.org/grpc/mem"

// raw sends and receives messages as the bytes they are: nothing is encoded while the clock runs.
type raw struct{}

func (raw) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

// Name is the content-subtype that servers expect.
func (raw) Name() string { return "proto" }
