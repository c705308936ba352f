package tablegate

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Kind is what an Event says.
type Kind int

const (
	Reset        Kind = iota + 1 // drop every row: a new snapshot begins
	Upsert                       // the row of Key is now Row
	Delete                       // the row of Key is gone, or no longer matches the request
	CatchingUp                   // the rows so far are not the complete table
	Current                      // the rows are the table as of AsOf; comes also as a heartbeat
	Disconnected                 // the stream broke; it goes on where it was after RetryAfter
)

var kindNames = [...]string{"Kind(0)", "Reset", "Upsert", "Delete", "CatchingUp", "Current", "Disconnected"}

func (k Kind) String() string { return kindNames[k] }

// Event is an event of a subscription.
//
// A message of the gateway becomes its changes (Upsert, Delete) and one of Reset, CatchingUp and Current, whose Token
// says exactly where a copy is that has all events up to there.
type Event[Row proto.Message] struct {
	Kind             Kind
	Key              Key       // of Upsert and Delete
	Row              Row       // of Upsert: the contract's message
	AsOf             time.Time // of Current: nothing is missing that was in the changelog before
	ConsistencyToken string    // of Current: makes another read at least as fresh, see AtLeast
	Token            string    // of Reset, CatchingUp and Current

	// Of Disconnected: why, and for how long it waits.
	Code       codes.Code
	Reason     string
	Text       string
	RetryAfter time.Duration
}
