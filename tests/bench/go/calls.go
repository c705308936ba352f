package main

import (
	"flag"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// callReport is what the clients saw.
type callReport struct {
	Count      int     `json:"count"`
	Failed     int     `json:"failed"`
	FirstError string  `json:"first_error"`
	ElapsedS   float64 `json:"elapsed_s"`
	P50Ms      float64 `json:"p50_ms"`
	P99Ms      float64 `json:"p99_ms"`
}

// tally collects the calls of one client.
type tally struct {
	latencies []time.Duration
	failed    int
	err       error
}

func (t *tally) add(took time.Duration, err error) {
	t.latencies = append(t.latencies, took)
	if err != nil {
		t.failed++
		t.err = err
	}
}

func report(tallies []tally, elapsed time.Duration) callReport {
	made := callReport{ElapsedS: elapsed.Seconds()}
	var all []time.Duration
	for _, one := range tallies {
		all = append(all, one.latencies...)
		made.Failed += one.failed
		if one.err != nil && made.FirstError == "" {
			made.FirstError = one.err.Error()
		}
	}
	slices.Sort(all)
	if made.Count = len(all); made.Count > 0 {
		made.P50Ms = all[len(all)/2].Seconds() * 1000
		made.P99Ms = all[len(all)*99/100].Seconds() * 1000
	}
	return made
}

// calls puts a load of unary calls on a server: with --rate at that pace whatever the server does (a call's latency
// then counts from when it was due), else with --in-flight clients that each wait for their answer.
func calls(flags *flag.FlagSet, args []string) (any, error) {
	seconds := flags.Float64("seconds", 4, "length")
	count := flags.Int("connections", 8, "connections")
	inFlight := flags.Int("in-flight", 32, "calls at once")
	rate := flags.Float64("rate", 0, "calls a second, without waiting for answers")
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	connections, err := target.connectMany(*count)
	if err != nil {
		return nil, err
	}
	length := time.Duration(*seconds * float64(time.Second))
	if *rate > 0 {
		return paced(target, connections, *rate, length), nil
	}
	return closed(*inFlight, length, func(client, number int) error {
		// Clients begin at places of their own, or they would ask for the same keys at the same time.
		return target.call(connections[client%len(connections)], client*len(target.requests) / *inFlight + number)
	}), nil
}

// connects makes a connection, calls once and closes it, again and again.
func connects(flags *flag.FlagSet, args []string) (any, error) {
	seconds := flags.Float64("seconds", 4, "length")
	inFlight := flags.Int("in-flight", 8, "clients at once")
	target, err := parse(flags, args)
	if err != nil {
		return nil, err
	}
	return closed(*inFlight, time.Duration(*seconds*float64(time.Second)), func(client, number int) error {
		connection, err := target.connect()
		if err != nil {
			return err
		}
		defer connection.Close()
		return target.call(connection, number)
	}), nil
}

func closed(clients int, length time.Duration, call func(client, number int) error) callReport {
	tallies := make([]tally, clients)
	var running sync.WaitGroup
	begin := time.Now()
	for client := range clients {
		running.Go(func() {
			for number := 0; time.Since(begin) < length; number++ {
				start := time.Now()
				err := call(client, number)
				tallies[client].add(time.Since(start), err)
			}
		})
	}
	running.Wait()
	return report(tallies, time.Since(begin))
}

func paced(target *target, connections []*grpc.ClientConn, rate float64, length time.Duration) callReport {
	// time.Sleep wakes up to a millisecond late when the runtime is idle, which would be most of what is measured.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	count := int(rate * length.Seconds())
	tallies := make([]tally, count)
	var running sync.WaitGroup
	begin := time.Now()
	for number := range count {
		due := begin.Add(time.Duration(float64(number) / rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			pause := syscall.NsecToTimespec(wait.Nanoseconds())
			_ = syscall.Nanosleep(&pause, nil) // a signal ends it early, and the call is early by as much
		}
		running.Go(func() {
			err := target.call(connections[number%len(connections)], number)
			tallies[number].add(time.Since(due), err)
		})
	}
	running.Wait()
	return report(tallies, time.Since(begin))
}
