package main

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"example.org/tablegate"
	ratings "example.org/tablegate/example/gen/examples/ratings/v1"
	pb "example.org/tablegate/example/gen/tablegate/v1"
)

// service notes what calls bring; its streams have rows 7 and 8, then 9.
type service struct {
	ratings.UnimplementedRatingsServiceServer
	left   chan time.Duration
	shown  chan []string
	ends   error         // what streams end with, after the row
	closed chan struct{} // is closed when the stream is over, also one that the client left between two rows
}

func (s *service) GetRating(ctx context.Context, _ *ratings.GetRatingRequest) (*ratings.GetRatingResponse, error) {
	end, _ := ctx.Deadline()
	s.left <- time.Until(end)
	return &ratings.GetRatingResponse{}, nil
}

func (s *service) SubscribeRatings(
	request *ratings.SubscribeRatingsRequest, stream grpc.ServerStreamingServer[ratings.SubscribeRatingsResponse],
) error {
	if s.closed != nil {
		defer close(s.closed)
	}
	sent, _ := metadata.FromIncomingContext(stream.Context())
	s.shown <- sent.Get("authorization")
	phase := pb.SubscribePhase_SUBSCRIBE_PHASE_CURRENT
	if request.SubscribeOptions.ResumeToken == "" {
		phase = pb.SubscribePhase_SUBSCRIBE_PHASE_RESET
	}
	for movie := int64(7); movie <= 9; movie++ {
		row := &ratings.RatingChange{Change: &ratings.RatingChange_Upsert{Upsert: &ratings.Rating{MovieId: movie}}}
		if err := stream.Send(&ratings.SubscribeRatingsResponse{
			Changes:  []*ratings.RatingChange{row},
			Progress: &pb.SubscribeProgress{Phase: phase, ResumeToken: "1.token"},
		}); err != nil {
			return err
		}
		phase = pb.SubscribePhase_SUBSCRIBE_PHASE_CURRENT
	}
	if s.ends != nil {
		return s.ends
	}
	<-stream.Context().Done()
	return nil
}

// serve returns a client of the service.
func serve(t *testing.T, service *service, options ...grpc.DialOption) ratings.RatingsServiceClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	ratings.RegisterRatingsServiceServer(server, service)
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	connection, err := tablegate.Dial(listener.Addr().String(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ratings.NewRatingsServiceClient(connection)
}

func TestAUnaryCallHasADeadlineItsOwnWhereItHasOne(t *testing.T) {
	service := &service{left: make(chan time.Duration, 1)}
	client := serve(t, service)
	if _, err := client.GetRating(t.Context(), &ratings.GetRatingRequest{}); err != nil {
		t.Fatal(err)
	}
	if left := <-service.left; left <= 0 || left > 5*time.Second {
		t.Error(left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.GetRating(ctx, &ratings.GetRatingRequest{}); err != nil {
		t.Fatal(err)
	}
	if left := <-service.left; left <= 5*time.Second {
		t.Error(left)
	}
}

func TestEachStreamShowsTheCredentialThatIsGoodThen(t *testing.T) {
	service := &service{shown: make(chan []string, 9), ends: status.Error(codes.Unauthenticated, "it has ended")}
	calls := 0
	credential := tablegate.CredentialFunc(func(context.Context) (string, error) {
		calls++
		if calls == 1 {
			return "", status.Error(codes.Unavailable, "its issuer is away")
		}
		return []string{"first", "second"}[calls-2], nil
	})
	client := serve(t, service, grpc.WithPerRPCCredentials(credential))
	disconnected := 0
	for event, err := range tablegate.Subscribe[*ratings.Rating](t.Context(), client.SubscribeRatings, &ratings.SubscribeRatingsRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind == tablegate.Disconnected && event.Code == codes.Unauthenticated {
			disconnected++
		}
		if event.Kind == tablegate.Current && disconnected == 1 {
			break
		}
	}
	for _, want := range []string{"Bearer first", "Bearer second"} {
		if shown := <-service.shown; !slices.Equal(shown, []string{want}) {
			t.Errorf("%q, not %q", shown, want)
		}
	}
}

func TestAListenerMayCloseTheTable(t *testing.T) {
	for closedBy, want := range map[int]int{1: 2, 3: 3} { // within the snapshot of two rows; within a message after it
		service := &service{shown: make(chan []string, 9), closed: make(chan struct{})}
		heard := 0
		table, err := tablegate.Open(t.Context(), serve(t, service).SubscribeRatings, &ratings.SubscribeRatingsRequest{},
			func(table *tablegate.LiveTable[*ratings.Rating], _ tablegate.Change[*ratings.Rating]) {
				if heard++; heard == closedBy {
					table.Close()
				}
			})
		if err != nil {
			t.Fatal(err)
		}
		<-table.Done()
		<-service.closed
		if err := table.WaitLive(t.Context()); err != tablegate.ErrClosed || heard != closedBy {
			t.Error(err, heard)
		}
		if row, has := table.Get(8); !has || row.MovieId != 8 || table.Len() != want {
			t.Error("its rows stay:", row, table.Len())
		}
	}
}

func TestATableEndsWithItsContext(t *testing.T) {
	service := &service{shown: make(chan []string, 9), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	table, err := tablegate.Open[*ratings.Rating](ctx, serve(t, service).SubscribeRatings, &ratings.SubscribeRatingsRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.WaitLive(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-table.Done()
	<-service.closed
	if state := table.Status().State; state != tablegate.Closed {
		t.Error(state)
	}
}

func TestATableOfOtherRowsIsRefused(t *testing.T) {
	client := serve(t, &service{})
	if _, err := tablegate.Open[*ratings.RatingKey](t.Context(), client.SubscribeRatings, &ratings.SubscribeRatingsRequest{}, nil); err == nil {
		t.Error("its rows are Ratings")
	}
}

func TestARequestAsksForWhatWasWritten(t *testing.T) {
	request := &ratings.GetRatingRequest{MovieId: 7}
	asked, err := tablegate.AtLeastSource(request,
		tablegate.SourceRecord{Topic: "a", Offset: 5}, tablegate.SourceRecord{Topic: "b", Partition: 1},
		tablegate.SourceRecord{Topic: "a", Offset: 3}, tablegate.SourceRecord{Topic: "a", Partition: 2, Offset: 4})
	if err != nil {
		t.Fatal(err)
	}
	topics := asked.ReadOptions.GetAtLeastSource().Topics
	if len(topics) != 2 || topics[0].Offsets[0] != 5 || topics[0].Offsets[2] != 4 || len(topics[1].Offsets) != 1 {
		t.Error(topics)
	}
	if request.ReadOptions != nil || asked.MovieId != 7 {
		t.Error("the request that was given is left as it was")
	}
	if asked, err = tablegate.AtLeast(asked, "1.token"); err != nil || asked.ReadOptions.GetAtLeast() != "1.token" {
		t.Error(asked, err)
	}
	if _, err := tablegate.AtLeastSource(request, tablegate.SourceRecord{Topic: "a", Offset: -1001}); err == nil {
		t.Error("a record without an offset is not acknowledged")
	}
	if _, err := tablegate.AtLeast(&ratings.SubscribeRatingsRequest{}, "1.token"); err == nil {
		t.Error("a Subscribe has no ReadOptions")
	}
}
