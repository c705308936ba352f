// Command ratings asks a gateway for one movie and then follows all of them.
// Each line it writes is a JSON object.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	ratings "example.org/tablegate/example/gen/examples/ratings/v1"
	tablegate "example.org/tablegate/example/gen/tablegate/v1"
)

//go:generate buf generate

const (
	getTimeout = 5 * time.Second
	retryAfter = time.Second      // where the gateway was not there to say when
	pingEvery  = 30 * time.Second // finds a gateway that went away without a word
)

func main() {
	address := flag.String("address", "127.0.0.1:50051", "HOST:PORT of the gateway")
	movie := flag.Int64("movie", 362, "movie to get")
	tokenFile := flag.String("token-file", "ratings.token", "file that keeps the resume token")
	count := flag.Int("count", math.MaxInt, "end after so many changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *address, *movie, *tokenFile, *count); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "ratings:", status.Convert(err).Message())
		os.Exit(1)
	}
}

func run(ctx context.Context, address string, movie int64, tokenFile string, count int) error {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery}))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := ratings.NewRatingsServiceClient(connection)
	if err := get(ctx, client, movie); err != nil {
		return err
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return (&subscriber{client: client, tokenFile: tokenFile, token: string(token), left: count}).follow(ctx)
}

func get(ctx context.Context, client ratings.RatingsServiceClient, movie int64) error {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	response, err := client.GetRating(ctx, &ratings.GetRatingRequest{MovieId: movie})
	if err != nil {
		return err
	}
	return write(&ratings.GetRatingResponse{Rating: response.Rating})
}

// subscriber follows the table. left: changes to write before it ends.
type subscriber struct {
	client    ratings.RatingsServiceClient
	tokenFile string
	token     string
	phase     tablegate.SubscribePhase
	left      int
}

// follow opens streams, each where the one before ended, until nothing is left to write.
func (s *subscriber) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for s.left > 0 {
		stream, err := s.client.SubscribeRatings(ctx, &ratings.SubscribeRatingsRequest{
			SubscribeOptions: &tablegate.SubscribeOptions{ResumeToken: s.token},
		})
		for err == nil && s.left > 0 {
			var response *ratings.SubscribeRatingsResponse
			if response, err = stream.Recv(); err == nil {
				err = s.take(response)
			}
		}
		if status.Code(err) != codes.Unavailable {
			return err
		}
		pause := pushback(stream)
		fmt.Fprintf(os.Stderr, "ratings: %s; again in %v\n", status.Convert(err).Message(), pause)
		time.Sleep(pause)
	}
	return nil
}

// take writes a message. Its token is kept once its changes are written: after a crash some may come again, none is lost.
func (s *subscriber) take(response *ratings.SubscribeRatingsResponse) error {
	for _, change := range response.Changes {
		if err := write(change); err != nil {
			return err
		}
	}
	s.left -= len(response.Changes)
	if phase := response.Progress.Phase; phase != s.phase {
		s.phase = phase
		fmt.Printf("{\"phase\": %q}\n", strings.TrimPrefix(phase.String(), "SUBSCRIBE_PHASE_"))
	}
	s.token = response.Progress.ResumeToken
	draft := s.tokenFile + ".new"
	if err := os.WriteFile(draft, []byte(s.token), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, s.tokenFile)
}

// pushback returns how long the gateway asks to wait; stream is nil where it was not reached.
func pushback(stream grpc.ClientStream) time.Duration {
	if stream != nil {
		if ms, err := strconv.Atoi(strings.Join(stream.Trailer().Get("grpc-retry-pushback-ms"), "")); err == nil {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return retryAfter
}

func write(message proto.Message) error {
	data, err := protojson.Marshal(message)
	if err == nil {
		_, err = fmt.Println(string(data))
	}
	return err
}
