package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcomes are calls of one kind, by what became of them.
type outcomes struct {
	mutex    sync.Mutex
	admitted []time.Duration // from when the call was due to its whole answer; of a stream, to its first message
	refused  []time.Duration // RESOURCE_EXHAUSTED
	late     int             // DEADLINE_EXCEEDED
	broken   int             // anything else, a connection that was closed among it
	first    error           // of those
}

func (o *outcomes) add(took time.Duration, err error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	switch status.Code(err) {
	case codes.OK:
		o.admitted = append(o.admitted, took)
	case codes.ResourceExhausted:
		o.refused = append(o.refused, took)
	case codes.DeadlineExceeded:
		o.late++
	default:
		o.broken++
		if o.first == nil {
			o.first = err
		}
	}
}

func (o *outcomes) report() map[string]any {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	admitted, refused := summary(o.admitted), summary(o.refused)
	made := map[string]any{"admitted": admitted, "refused": refused, "late": o.late, "broken": o.broken}
	if o.first != nil {
		made["first_error"] = o.first.Error()
	}
	return made
}

func summary(took []time.Duration) callReport {
	return report([]tally{{latencies: took}}, 0)
}

// overload sends unary calls at a pace that the server cannot keep, beside clients that scan again and again and others
// that try to subscribe, all at once; the requests are one of each kind, in this order. A client that was refused waits
// as clients do: a scan for a second; who may not subscribe does not try again.
func overload(flags *flag.FlagSet, args []string) (any, error) {
	seconds := flags.Float64("seconds", 60, "length")
	rate := flags.Float64("rate", 1000, "unary calls a second")
	deadline := flags.Float64("deadline", 5, "seconds that a unary call has")
	scans := flags.Int("scans", 1000, "clients that scan")
	subscribes := flags.Int("subscribes", 10000, "attempts to subscribe, evenly over the time")
	scanPath := flags.String("scan-path", "", "method, as /service/method")
	subscribePath := flags.String("subscribe-path", "", "method, as /service/method")
	connectionCount := flags.Int("connections", 32, "connections, of all kinds")
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	connections, err := target.connectMany(*connectionCount)
	if err != nil {
		return nil, err
	}
	length := time.Duration(*seconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var unary, scanned, subscribed outcomes
	var running sync.WaitGroup
	for number := range *scans {
		running.Go(func() { scanAgain(ctx, target, *scanPath, connections[number%len(connections)], &scanned) })
	}
	running.Go(func() {
		for number := range *subscribes {
			waitFor(ctx, length/time.Duration(*subscribes))
			connection := connections[number%len(connections)]
			running.Go(func() { attempt(ctx, target, *subscribePath, connection, &subscribed) })
		}
	})
	begin, count := time.Now(), int(*rate*length.Seconds())
	for number := range count {
		due := begin.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
		if wait := time.Until(due); wait > time.Millisecond {
			time.Sleep(wait) // late by up to a millisecond: calls of this pace wait for longer
		}
		running.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), due.Add(time.Duration(*deadline*float64(time.Second))))
			defer cancel()
			var answer []byte
			err := connections[number%len(connections)].Invoke(ctx, target.path, target.requests[0], &answer)
			unary.add(time.Since(due), err)
		})
	}
	running.Wait()
	return map[string]any{
		"elapsed_s": time.Since(begin).Seconds(),
		"unary":     unary.report(), "scan": scanned.report(), "subscribe": subscribed.report(),
	}, nil
}

// scanAgain reads whole scans until the context ends; each first message counts.
func scanAgain(ctx context.Context, target *target, path string, connection *grpc.ClientConn, seen *outcomes) {
	for ctx.Err() == nil {
		if err := attempt(ctx, target, path, connection, seen); err != nil {
			waitFor(ctx, time.Second)
		}
	}
}

// attempt opens a stream, counts what came of it, and reads it to its end.
func attempt(ctx context.Context, target *target, path string, connection *grpc.ClientConn, seen *outcomes) error {
	begin := time.Now()
	stream, err := connection.NewStream(ctx, &serverStream, path)
	if err == nil {
		err = stream.SendMsg(target.requests[len(target.requests)-1])
	}
	if err == nil {
		err = stream.CloseSend()
	}
	var message []byte
	if err == nil || errors.Is(err, io.EOF) {
		err = stream.RecvMsg(&message)
	}
	if ctx.Err() != nil {
		return ctx.Err() // the load is over: nobody's fault
	}
	seen.add(time.Since(begin), err)
	for err == nil {
		err = stream.RecvMsg(&message)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func waitFor(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
