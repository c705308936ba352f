// Command bench-load puts load on a gRPC server, or is a gRPC server that answers a constant. What it measured goes
// to stdout as one line of JSON.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
)

var commands = map[string]func(*flag.FlagSet, []string) (any, error){
	"calls":     calls,
	"connects":  connects,
	"scan":      scan,
	"streams":   streams,
	"subscribe": subscribe,
	"overload":  overload,
	"floor":     floor,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "give a command: calls, connects, scan, streams, subscribe, overload or floor")
		os.Exit(2)
	}
	// Client and server share the machine's cores: collect garbage less often than a server would.
	if os.Args[1] != "floor" {
		debug.SetGCPercent(400)
	}
	report, err := commands[os.Args[1]](flag.NewFlagSet(os.Args[1], flag.ExitOnError), os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	say(report)
}

func say(report any) {
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
}
