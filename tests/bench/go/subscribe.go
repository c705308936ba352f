package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of a SubscribeRatingsResponse, a RatingChange, a Rating and a Timestamp; the phase of a SubscribeProgress.
const (
	changesField, progressField = 1, 2
	upsertField                 = 1
	updateTimeField             = 4
	secondsField, nanosField    = 1, 2
	phaseField                  = 1
	phaseCurrent                = 3
)

// subscriber reads one stream. Before its copy is whole it counts rows; within the window it keeps how long ago each
// change was sent, in microseconds.
type subscriber struct {
	rows int
	lags []int32
}

// subscribeReport is what all subscribers saw within the window.
type subscribeReport struct {
	Changes  int     `json:"changes"`
	ElapsedS float64 `json:"elapsed_s"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
	CPUS     float64 `json:"cpu_s"`
}

// subscribe opens streams, of which the first --stalled are never read. It says so once the copies of the others are
// whole, says so again after --warm, counts changes for --seconds, and reports. A stream that ends is an error.
func subscribe(flags *flag.FlagSet, args []string) (any, error) {
	count := flags.Int("streams", 1, "streams")
	connectionCount := flags.Int("connections", 1, "connections")
	stalled := flags.Int("stalled", 0, "streams that are opened and never read")
	warm := flags.Float64("warm", 1, "seconds before changes count")
	seconds := flags.Float64("seconds", 4, "seconds in which they do")
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	connections, err := target.connectMany(*connectionCount)
	if err != nil {
		return nil, err
	}
	if *stalled >= *count {
		return nil, errors.New("at least one stream has to be read")
	}
	subscribers := make([]subscriber, *count-*stalled)
	current, done := make(chan error, *count), make(chan error, *count)
	var window atomic.Bool
	begin := time.Now()
	for n := range *count {
		stream, err := target.open(connections[n%len(connections)], n)
		if err != nil {
			return nil, err
		}
		if n >= *stalled {
			go func() { done <- subscribers[n-*stalled].run(stream, current, &window) }()
		}
	}
	rows := 0
	for n := range subscribers {
		select {
		case <-current:
		case err := <-done:
			return nil, err
		}
		rows += subscribers[n].rows
	}
	say(map[string]any{"current": len(subscribers), "rows": rows, "elapsed_s": time.Since(begin).Seconds()})
	if err := pause(*warm, done); err != nil {
		return nil, err
	}
	say(map[string]bool{"counting": true})
	begin, cpu := time.Now(), usedCPU()
	window.Store(true)
	if err := pause(*seconds, done); err != nil {
		return nil, err
	}
	window.Store(false)
	made := subscribeReport{ElapsedS: time.Since(begin).Seconds(), CPUS: (usedCPU() - cpu).Seconds()}
	for _, connection := range connections {
		connection.Close()
	}
	var lags []int32
	for range subscribers {
		<-done
	}
	for _, one := range subscribers {
		lags = append(lags, one.lags...)
	}
	slices.Sort(lags)
	if made.Changes = len(lags); made.Changes > 0 {
		made.P50Ms = float64(lags[len(lags)/2]) / 1000
		made.P99Ms = float64(lags[len(lags)*99/100]) / 1000
	}
	return made, nil
}

// pause waits; a stream that ends meanwhile is an error.
func pause(seconds float64, done chan error) error {
	select {
	case err := <-done:
		return err
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return nil
	}
}

func usedCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (s *subscriber) run(stream grpc.ClientStream, current chan error, window *atomic.Bool) error {
	for whole := false; ; {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return fmt.Errorf("a subscription ended: %w", err)
		}
		counts := window.Load()
		now := time.Now().UnixMicro()
		var progress []byte
		for len(message) > 0 {
			field, value, _, length := next(message)
			if length < 0 {
				return protowire.ParseError(length)
			}
			message = message[length:]
			switch {
			case field == progressField:
				progress = value
			case field == changesField && !whole:
				s.rows++
			case field == changesField && counts:
				s.lags = append(s.lags, int32(now-sentAt(value)))
			}
		}
		if _, phase := find(progress, phaseField); phase == phaseCurrent && !whole {
			whole = true
			current <- nil
		}
	}
}

// next takes the first field of a message apart: its bytes, or its number; a negative length is an error.
func next(message []byte) (field protowire.Number, value []byte, number uint64, length int) {
	field, kind, tag := protowire.ConsumeTag(message)
	if tag < 0 {
		return 0, nil, 0, tag
	}
	switch rest := message[tag:]; kind {
	case protowire.BytesType:
		value, length = protowire.ConsumeBytes(rest)
	case protowire.VarintType:
		number, length = protowire.ConsumeVarint(rest)
	default:
		length = protowire.ConsumeFieldValue(field, kind, rest)
	}
	if length < 0 {
		return 0, nil, 0, length
	}
	return field, value, number, tag + length
}

// find returns what the first field of a number has; nothing where there is none.
func find(message []byte, wanted protowire.Number) ([]byte, uint64) {
	for len(message) > 0 {
		field, value, number, length := next(message)
		if length < 0 {
			break
		}
		if field == wanted {
			return value, number
		}
		message = message[length:]
	}
	return nil, 0
}

// sentAt returns the update_time of the row of a change, in microseconds since 1970.
func sentAt(change []byte) int64 {
	row, _ := find(change, upsertField)
	sent, _ := find(row, updateTimeField)
	_, seconds := find(sent, secondsField)
	_, nanos := find(sent, nanosField)
	return int64(seconds)*1_000_000 + int64(nanos)/1000
}
