package tablegate

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	deadline         = 5 * time.Second  // of a unary call that is given none: the gateway waits for freshness up to half of it
	responseBytesMax = 64 * 1024 * 1024 // a page has up to 1,000 rows; gRPC's own limit is 4 MiB
	keepaliveEvery   = 30 * time.Second // a gateway allows one ping every 20 s
	keepaliveTimeout = 10 * time.Second
	connectTimeout   = 5 * time.Second
)

// ServiceConfig is the retry policy that goes with a gateway: of its statuses it means UNAVAILABLE alone to be tried
// again. gRPC itself heeds the pause that the gateway asks for.
const ServiceConfig = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// gRPC's own pauses before it connects again are a second, up to two minutes.
var reconnects = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: connectTimeout,
}

// Dial returns a connection to the gateway at target (host:port, or what gRPC's resolvers know), with the settings that
// go with one. Those in options win.
//
// It speaks plaintext without grpc.WithTransportCredentials. A unary call that UNAVAILABLE ends is tried again, up to
// four times in all, when the gateway says so; one whose context has no deadline has 5 s. Streams have no deadline.
func Dial(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(ServiceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(responseBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(reconnects),
		grpc.WithChainUnaryInterceptor(withDeadline),
	}, options...)...)
}

// withDeadline gives unary calls a deadline. A service config cannot: it knows no unary methods from streams.
func withDeadline(
	ctx context.Context, method string, request, response any,
	connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	return invoke(ctx, method, request, response, connection, options...)
}

// Credential shows a JWT or an API key with each call that has no authorization of its own: over TLS, or others read it.
//
//	tablegate.Dial(target, grpc.WithPerRPCCredentials(tablegate.Credential(key)))
func Credential(text string) CredentialFunc {
	return func(context.Context) (string, error) { return text, nil }
}

// CredentialFunc returns the credential that is good now; each call asks for it. It must be quick. An error ends the
// call: a status.Error of UNAVAILABLE is tried again, any other is not.
type CredentialFunc func(context.Context) (string, error)

// GetRequestMetadata is of credentials.PerRPCCredentials.
func (f CredentialFunc) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if sent, _ := metadata.FromOutgoingContext(ctx); len(sent.Get("authorization")) > 0 {
		return nil, nil
	}
	text, err := f(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity is of credentials.PerRPCCredentials: loopback has no TLS.
func (f CredentialFunc) RequireTransportSecurity() bool { return false }
