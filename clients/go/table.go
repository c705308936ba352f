// Package tablegate is the Go client of Tablegate gateways. It does what generated code does not do by itself: tables
// that stay live, subscriptions that outlive their streams, reads that see what you have written.
//
// It works over the code that protoc-gen-go and protoc-gen-go-grpc make of a contract.
package tablegate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// State is what a live table does.
type State int

const (
	Loading State = iota // no complete snapshot has come yet; there are no rows
	Live                 // the stream is up, and the rows were complete as of AsOf
	Stale                // the rows stay as they were as of AsOf; the stream is away, or not caught up
	Refused              // the gateway refuses it, and would again; the rows stay, Err says why
	Closed               // the rows stay as they were
)

var stateNames = [...]string{"loading", "live", "stale", "refused", "closed"}

func (s State) String() string { return stateNames[s] }

type happening int

const (
	none happening = iota
	current
	behind
	refused
	closed
)

// transitions: what is not here cannot happen. A table that was refused or closed has no stream.
var transitions = map[State]map[happening]State{
	Loading: {current: Live, behind: Loading, refused: Refused, closed: Closed},
	Live:    {current: Live, behind: Stale, refused: Refused, closed: Closed},
	Stale:   {current: Live, behind: Stale, refused: Refused, closed: Closed},
	Refused: {closed: Refused},
	Closed:  {closed: Closed},
}

var happenings = map[Kind]happening{
	Reset: behind, CatchingUp: behind, Disconnected: behind, Current: current, Upsert: none, Delete: none,
}

// ErrClosed is what WaitLive returns of a table that was closed.
var ErrClosed = errors.New("the live table is closed")

// Status is how a table is at one moment.
type Status struct {
	State            State
	AsOf             time.Time // nothing is missing that was in the changelog before; zero before the first snapshot
	ConsistencyToken string    // makes another read at least as fresh, see AtLeast
	Trouble          string    // why it is not live; "" where it is
	Err              error     // what ended it: a *SubscribeError
}

// LiveTable is a copy of a table that follows a Subscribe from Open until Close. Any goroutine may use it; its rows are
// not to be altered.
//
// Nobody sees half of a snapshot: the first is shown when it is complete, and after a reset the old rows stay until the
// new ones are.
//
// Decision: docs/decisions/0160-the-go-client-reads-descriptors.md
type LiveTable[Row proto.Message] struct {
	onChange OnChange[Row]
	stop     context.CancelFunc
	done     chan struct{}

	mutex   sync.RWMutex
	rows    rows[Row]
	status  Status
	changed chan struct{} // closed, and made anew, with each message
}

// OnChange gets a change of a table, which has it by then. Changes come in order, in one goroutine; the table goes on when
// it returns. It may close the table.
type OnChange[Row proto.Message] func(table *LiveTable[Row], change Change[Row])

// Open opens a table, which follows until ctx is done:
//
//	table, err := tablegate.Open[*ratings.Rating](ctx, client.SubscribeRatings, &ratings.SubscribeRatingsRequest{}, nil)
//
// onChange, where it is not nil, may be called before this returns. ErrContractMismatch: method is no Subscribe, or has
// other rows.
func Open[Row proto.Message, Request, Response any](
	ctx context.Context, method Method[Request, Response], request *Request, onChange OnChange[Row],
) (*LiveTable[Row], error) {
	// Its rows are here alone: a token that is refused costs a snapshot, and nothing that nobody could tell.
	subscription, err := newSubscription[Row](method, request, subscribeSettings{tokens: &TokenMemory{}, restarts: true})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	table := &LiveTable[Row]{
		onChange: onChange, stop: stop, done: make(chan struct{}), changed: make(chan struct{}),
	}
	go func() {
		defer close(table.done)
		defer stop()
		if err := subscription.run(ctx, table.follow); err != nil {
			table.end(refused, err)
		} else {
			table.end(closed, nil)
		}
	}()
	return table, nil
}

// Get returns the row of a key: the values of its columns, in the order of the table's key.
func (t *LiveTable[Row]) Get(key ...any) (Row, bool) {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	found, has := t.rows.shown[Key(key).String()]
	return found.row, has
}

// Len returns how many rows there are.
func (t *LiveTable[Row]) Len() int {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	return len(t.rows.shown)
}

// All returns the keys and rows of this moment, in no order that is promised.
func (t *LiveTable[Row]) All() iter.Seq2[Key, Row] {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	shown := t.rows.share()
	return func(yield func(Key, Row) bool) {
		for _, each := range shown {
			if !yield(each.key, each.row) {
				return
			}
		}
	}
}

// Status returns how the table is.
func (t *LiveTable[Row]) Status() Status {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	return t.status
}

// Changed returns a channel that is closed with the next message, or end, of the table.
func (t *LiveTable[Row]) Changed() <-chan struct{} {
	t.mutex.RLock()
	defer t.mutex.RUnlock()
	return t.changed
}

// WaitLive waits until the table is live. It returns what ended the table, ErrClosed, or why ctx is done.
func (t *LiveTable[Row]) WaitLive(ctx context.Context) error {
	for {
		changed := t.Changed() // before the status, so that no change is missed
		switch status := t.Status(); status.State {
		case Live:
			return nil
		case Refused:
			return status.Err
		case Closed:
			return ErrClosed
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				if status.Trouble != "" {
					return fmt.Errorf("the table is not live: %s: %w", status.Trouble, ctx.Err())
				}
				return fmt.Errorf("the table is not live: %w", ctx.Err())
			}
		}
	}
}

// Close ends it; the rows stay as they were. It does not wait, so onChange may call it.
func (t *LiveTable[Row]) Close() {
	t.stop()
	t.end(closed, nil)
}

// Done returns a channel that is closed once the table has ended: then onChange is called no more.
func (t *LiveTable[Row]) Done() <-chan struct{} {
	return t.done
}

// follow applies the events of a message; false once the table is closed.
func (t *LiveTable[Row]) follow(events []Event[Row]) bool {
	for i := range events {
		changes, goesOn := t.apply(&events[i])
		if !goesOn {
			return false
		}
		if t.onChange == nil {
			continue
		}
		for _, change := range changes {
			if t.Status().State == Closed {
				return false
			}
			t.onChange(t, change)
		}
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.tell()
	return true
}

func (t *LiveTable[Row]) apply(event *Event[Row]) ([]Change[Row], bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.status.State == Closed {
		return nil, false
	}
	changes := t.rows.apply(event)
	switch event.Kind {
	case Current:
		t.status.AsOf, t.status.ConsistencyToken, t.status.Trouble = event.AsOf, event.ConsistencyToken, ""
	case Disconnected:
		t.status.Trouble = CodeName(event.Code) + ": " + event.Text
	}
	t.move(happenings[event.Kind])
	return changes, true
}

func (t *LiveTable[Row]) end(how happening, err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.status.State == Closed {
		return // by Close, while the stream was ending by itself
	}
	t.move(how)
	if err != nil {
		t.status.Err, t.status.Trouble = err, err.Error()
	}
	t.tell()
}

// move is for who holds the mutex, as tell is.
func (t *LiveTable[Row]) move(how happening) {
	if how == none {
		return
	}
	next, can := transitions[t.status.State][how]
	if !can {
		panic(fmt.Sprintf("a table that is %v cannot have %d", t.status.State, how))
	}
	t.status.State = next
}

func (t *LiveTable[Row]) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}
