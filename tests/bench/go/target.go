package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// callTimeout is sent with each call, as clients should, and as ghz does.
const callTimeout = 20 * time.Second

// target is the method of a server that is under load.
type target struct {
	address, path, ca string
	requests          [][]byte
}

// parse reads the flags that every load has, and the command's own.
func parse(flags *flag.FlagSet, args []string) (*target, error) {
	var found target
	flags.StringVar(&found.address, "address", "", "HOST:PORT")
	flags.StringVar(&found.path, "path", "", "method, as /service/method")
	flags.StringVar(&found.ca, "ca", "", "certificate to trust (PEM); plaintext without it")
	file := flags.String("requests", "", "file of requests, each after its length (uint32, big endian)")
	flags.Parse(args)
	data, err := os.ReadFile(*file)
	if err != nil {
		return nil, err
	}
	for len(data) > 0 {
		if len(data) < 4 || uint64(len(data)-4) < uint64(binary.BigEndian.Uint32(data)) {
			return nil, errors.New("the file of requests ends within one")
		}
		end := 4 + binary.BigEndian.Uint32(data)
		found.requests = append(found.requests, data[4:end])
		data = data[end:]
	}
	if len(found.requests) == 0 {
		return nil, errors.New("the file of requests has none")
	}
	return &found, nil
}

func (t *target) connect() (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if t.ca != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(t.ca, ""); err != nil {
			return nil, err
		}
	}
	return grpc.NewClient("passthrough:///"+t.address, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
}

// connectMany returns connections that are ready, so that none is made while the clock runs.
func (t *target) connectMany(count int) ([]*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	made := make([]*grpc.ClientConn, count)
	for n := range made {
		connection, err := t.connect()
		if err != nil {
			return nil, err
		}
		connection.Connect()
		for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
			if !connection.WaitForStateChange(ctx, state) {
				return nil, fmt.Errorf("no connection to %s within %v", t.address, callTimeout)
			}
		}
		made[n] = connection
	}
	return made, nil
}

func (t *target) call(connection *grpc.ClientConn, number int) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var answer []byte
	return connection.Invoke(ctx, t.path, t.requests[number%len(t.requests)], &answer)
}
