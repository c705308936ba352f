package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

var serverStream = grpc.StreamDesc{ServerStreams: true}

// open begins a server stream, with the requests in turn.
func (t *target) open(connection *grpc.ClientConn, number int) (grpc.ClientStream, error) {
	stream, err := connection.NewStream(context.Background(), &serverStream, t.path)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(t.requests[number%len(t.requests)]); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

// scan reads a stream to its end and counts the rows: the elements of field 1 of its messages.
func scan(flags *flag.FlagSet, args []string) (any, error) {
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	connection, err := target.connect()
	if err != nil {
		return nil, err
	}
	begin, rows := time.Now(), 0
	stream, err := target.open(connection, 0)
	if err != nil {
		return nil, err
	}
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		for len(message) > 0 {
			field, _, length := protowire.ConsumeField(message)
			if length < 0 {
				return nil, protowire.ParseError(length)
			}
			if field == 1 {
				rows++
			}
			message = message[length:]
		}
	}
	return map[string]any{"rows": rows, "elapsed_s": time.Since(begin).Seconds()}, nil
}

// streams opens streams, says so once each has had its first message, and holds them until stdin ends. A stream that
// ends before that is an error.
func streams(flags *flag.FlagSet, args []string) (any, error) {
	count := flags.Int("count", 500, "streams")
	connectionCount := flags.Int("connections", 20, "connections")
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	connections, err := target.connectMany(*connectionCount)
	if err != nil {
		return nil, err
	}
	var ended atomic.Int64
	first := make(chan error, *count)
	for n := range *count {
		go func() {
			stream, err := target.open(connections[n%len(connections)], n)
			var message []byte
			if err == nil {
				err = stream.RecvMsg(&message)
			}
			first <- err
			for err == nil {
				err = stream.RecvMsg(&message)
			}
			ended.Add(1)
		}()
	}
	for range *count {
		if err := <-first; err != nil {
			return nil, err
		}
	}
	say(map[string]int{"open": *count})
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return nil, err
	}
	if ended := ended.Load(); ended > 0 {
		return nil, fmt.Errorf("%d of %d streams ended by themselves", ended, *count)
	}
	return map[string]int{"held": *count}, nil
}
