package main

import (
	"context"
	"flag"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// floor serves one method with the same answer always: what a Get costs where gRPC is all there is. It prints its
// address, and serves until it is killed.
func floor(flags *flag.FlagSet, args []string) (any, error) {
	path := flags.String("path", "", "method, as /service/method")
	answerFile := flags.String("answer", "", "file with the answer's bytes")
	certificate := flags.String("tls-cert", "", "certificate (PEM); plaintext without it")
	key := flags.String("tls-key", "", "its key (PEM)")
	flags.Parse(args)

	answer, err := os.ReadFile(*answerFile)
	if err != nil {
		return nil, err
	}
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(raw{})}
	if *certificate != "" {
		tls, err := credentials.NewServerTLSFromFile(*certificate, *key)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(tls))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(*path, "/"), "/")
	server := grpc.NewServer(options...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: method,
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var request []byte
				if err := decode(&request); err != nil {
					return nil, err
				}
				return answer, nil
			},
		}},
	}, struct{}{})
	say(map[string]string{"address": listener.Addr().String()})
	return nil, server.Serve(listener)
}
