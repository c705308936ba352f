// Command driver is the client of clients/scenarios.txt: tests/kit/client_scenarios asks it. A command and its answer
// are lines of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.org/tablegate"
	ratings "example.org/tablegate/example/gen/examples/ratings/v1"
	pb "example.org/tablegate/example/gen/tablegate/v1"
)

type object = map[string]any

type command struct {
	Do         string
	Address    string
	Request    json.RawMessage
	Credential *string
	Movie      string
	Until      string
	Token      string
	Restart    bool
	Record     *tablegate.SourceRecord
}

func main() {
	driver := &driver{}
	defer driver.close()
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked command
		if err = json.Unmarshal(line, &asked); err == nil {
			var answer any
			if answer, err = driver.ask(&asked); err == nil {
				err = json.NewEncoder(os.Stdout).Encode(answer)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "driver:", err)
			os.Exit(1)
		}
	}
}

type driver struct {
	connection *grpc.ClientConn
	table      *tablegate.LiveTable[*ratings.Rating]
	told       *told
}

// told is what a table has told of its changes.
type told struct {
	mutex sync.Mutex
	heard map[string]int64
	sizes map[int]bool
}

func (t *told) hear(table *tablegate.LiveTable[*ratings.Rating], change tablegate.Change[*ratings.Rating]) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.sizes[table.Len()] = true
	if change.Deleted {
		delete(t.heard, change.Key.String())
	} else {
		t.heard[change.Key.String()] = change.Row.RatingCount
	}
}

func (d *driver) ask(asked *command) (any, error) {
	ctx := context.Background()
	switch asked.Do {
	case "open":
		return nil, d.open(ctx, asked)
	case "show":
		return d.show(), nil
	case "close":
		d.close()
		return nil, nil
	case "row":
		movie, err := strconv.Atoi(asked.Movie)
		if row, has := d.table.Get(movie); has {
			return row.RatingCount, err
		}
		return nil, err
	case "follow":
		return follow(ctx, asked)
	case "get":
		return get(ctx, asked)
	default:
		return nil, fmt.Errorf("there is no command %q", asked.Do)
	}
}

func (d *driver) open(ctx context.Context, asked *command) error {
	d.close()
	var options []grpc.DialOption
	if asked.Credential != nil {
		options = append(options, grpc.WithPerRPCCredentials(tablegate.Credential(*asked.Credential)))
	}
	request := &ratings.SubscribeRatingsRequest{}
	if err := protojson.Unmarshal(asked.Request, request); err != nil {
		return err
	}
	connection, err := tablegate.Dial(asked.Address, options...)
	if err != nil {
		return err
	}
	told := &told{heard: map[string]int64{}, sizes: map[int]bool{}}
	client := ratings.NewRatingsServiceClient(connection)
	d.table, err = tablegate.Open(ctx, client.SubscribeRatings, request, told.hear)
	if err != nil {
		return err
	}
	d.told, d.connection = told, connection
	return nil
}

// close keeps the table: what it has is shown still.
func (d *driver) close() {
	if d.connection != nil {
		d.table.Close()
		<-d.table.Done()
		d.connection.Close()
		d.connection = nil
	}
}

func (d *driver) show() any {
	now := d.table.Status()
	rows := object{}
	for key, row := range d.table.All() {
		rows[key.String()] = row.RatingCount
	}
	d.told.mutex.Lock()
	defer d.told.mutex.Unlock()
	shown := object{
		"state": now.State.String(), "trouble": now.Trouble, "code": "", "reason": "",
		"rows": rows, "heard": maps.Clone(d.told.heard), "sizes": slices.AppendSeq([]int{}, maps.Keys(d.told.sizes)),
	}
	maps.Copy(shown, refusal(now.Err))
	return shown
}

// refusal returns what a gateway has refused a subscription with.
func refusal(err error) object {
	var refused *tablegate.SubscribeError
	if errors.As(err, &refused) {
		return object{"code": tablegate.CodeName(refused.Code), "reason": refused.Reason}
	}
	return nil
}

func follow(ctx context.Context, asked *command) (any, error) {
	connection, err := tablegate.Dial(asked.Address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	tokens := &tablegate.TokenMemory{}
	if err := tokens.Save(asked.Token); err != nil {
		return nil, err
	}
	options := []tablegate.SubscribeOption{tablegate.Tokens(tokens)}
	if asked.Restart {
		options = append(options, tablegate.Restart())
	}
	request := &ratings.SubscribeRatingsRequest{
		SubscribeOptions: &pb.SubscribeOptions{ProgressInterval: durationpb.New(100 * time.Millisecond)},
	}
	given, reset, done := object{}, false, false
	client := ratings.NewRatingsServiceClient(connection)
	for event, err := range tablegate.Subscribe[*ratings.Rating](ctx, client.SubscribeRatings, request, options...) {
		if refused := refusal(err); refused != nil {
			return refused, nil
		}
		if err != nil {
			return nil, err
		}
		// By asking for this event all before it was seen to.
		if done {
			break
		}
		switch event.Kind {
		case tablegate.Reset:
			reset = true
		case tablegate.Upsert, tablegate.Delete:
			given[event.Key.String()] = nil
		case tablegate.Current, tablegate.CatchingUp:
			_, done = given[asked.Until]
		}
	}
	token, err := tokens.Load()
	return object{"reset": reset, "movies": slices.AppendSeq([]string{}, maps.Keys(given)), "token": token}, err
}

func get(ctx context.Context, asked *command) (any, error) {
	connection, err := tablegate.Dial(asked.Address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	movie, err := strconv.ParseInt(asked.Movie, 10, 64)
	if err != nil {
		return nil, err
	}
	request := &ratings.GetRatingRequest{MovieId: movie}
	if asked.Record != nil {
		if request, err = tablegate.AtLeastSource(request, *asked.Record); err != nil {
			return nil, err
		}
	}
	response, err := ratings.NewRatingsServiceClient(connection).GetRating(ctx, request)
	if err != nil {
		return object{"code": tablegate.CodeName(status.Code(err)), "reason": tablegate.Reason(err)}, nil
	}
	return object{"count": response.Rating.RatingCount}, nil
}
