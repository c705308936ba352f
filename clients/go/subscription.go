package tablegate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Method is a Subscribe of a generated client, as client.SubscribeRatings.
type Method[Request, Response any] func(
	context.Context, *Request, ...grpc.CallOption,
) (grpc.ServerStreamingClient[Response], error)

// SubscribeOption says how a subscription begins.
type SubscribeOption func(*subscribeSettings)

type subscribeSettings struct {
	tokens   TokenStore
	restarts bool
}

// Tokens has the token to continue from, and gets each newer one once the consumer has all events before it, which it
// shows by asking for the next one. Without it the request's own token counts, if it has one.
func Tokens(store TokenStore) SubscribeOption {
	return func(settings *subscribeSettings) { settings.tokens = store }
}

// Restart lets a token that the gateway refuses begin with a Reset and a new snapshot, instead of ending.
func Restart() SubscribeOption {
	return func(settings *subscribeSettings) { settings.restarts = true }
}

// Subscribe returns the events of a Subscribe, over as many streams as it takes, until ctx is done.
//
//	for event, err := range tablegate.Subscribe[*ratings.Rating](ctx, client.SubscribeRatings, request) {
//
// A stream that breaks (UNAVAILABLE, CANCELLED, a lost connection, three heartbeats that did not come) is opened again
// where it was, after a pause that grows, or the one that the gateway asks for. An error is the last that comes: a
// *SubscribeError where the gateway refuses it, ErrContractMismatch, or what the token store returned.
func Subscribe[Row proto.Message, Request, Response any](
	ctx context.Context, method Method[Request, Response], request *Request, options ...SubscribeOption,
) iter.Seq2[Event[Row], error] {
	return func(yield func(Event[Row], error) bool) {
		settings := subscribeSettings{tokens: &TokenMemory{}}
		for _, option := range options {
			option(&settings)
		}
		subscription, err := newSubscription[Row](method, request, settings)
		if err == nil {
			err = subscription.run(ctx, func(events []Event[Row]) bool {
				for _, event := range events {
					if !yield(event, nil) {
						return false
					}
				}
				return true
			})
		}
		if err != nil {
			yield(Event[Row]{}, err)
		}
	}
}

type subscription[Row proto.Message, Request, Response any] struct {
	*subscriber[Row]
	method Method[Request, Response]
	tokens TokenStore
}

func newSubscription[Row proto.Message, Request, Response any](
	method Method[Request, Response], request *Request, settings subscribeSettings,
) (*subscription[Row, Request, Response], error) {
	asked, isMessage := any(request).(proto.Message)
	answered, answersMessage := any(new(Response)).(proto.Message)
	if !isMessage || !answersMessage {
		return nil, mismatch("%T or %T is no message of generated code", request, new(Response))
	}
	token, err := settings.tokens.Load()
	if err != nil {
		return nil, err
	}
	subscriber, err := newSubscriber[Row](
		asked, answered.ProtoReflect().Descriptor(), token, settings.restarts, rand.N[time.Duration])
	if err != nil {
		return nil, err
	}
	return &subscription[Row, Request, Response]{subscriber, method, settings.tokens}, nil
}

// run gives the events of each message to yield, until that returns false, ctx is done, or something ends it.
func (s *subscription[Row, Request, Response]) run(ctx context.Context, yield func([]Event[Row]) bool) error {
	for ctx.Err() == nil {
		why, err := s.stream(ctx, yield)
		if err != nil || ctx.Err() != nil {
			return ignoreStop(err)
		}
		disconnected, err := s.disconnected(why)
		if err != nil {
			return err
		}
		if !yield([]Event[Row]{disconnected}) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(disconnected.RetryAfter):
		}
	}
	return nil
}

var (
	errStop   = errors.New("the consumer has left")
	errSilent = errors.New("the stream is silent")
)

func ignoreStop(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// stream follows one stream, and returns why it ended; an error ends the subscription.
func (s *subscription[Row, Request, Response]) stream(
	ctx context.Context, yield func([]Event[Row]) bool,
) (failure, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := s.silence()
	// It runs while a message is waited for, not while the consumer is at work.
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	failed := func(err error) (failure, error) {
		switch {
		case errors.Is(context.Cause(ctx), errSilent):
			return failure{code: codes.Unavailable, text: fmt.Sprintf("no message for %v", silence)}, nil
		case errors.Is(err, io.EOF):
			return failure{code: codes.Unavailable, text: "the stream ended"}, nil
		default:
			return failureOf(err), nil
		}
	}
	stream, err := s.method(ctx, any(s.request()).(*Request))
	if err != nil {
		return failed(err)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return failed(err)
		}
		silent.Stop()
		if !yield(s.receive(any(response).(proto.Message).ProtoReflect())) {
			return failure{}, errStop
		}
		// Here the consumer has asked for the next event, and so is done with all before.
		if err := s.tokens.Save(s.token); err != nil {
			return failure{}, err
		}
		silent.Reset(silence)
	}
}
