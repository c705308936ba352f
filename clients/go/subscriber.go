package tablegate

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	progressEvery = 5 * time.Second        // how often a gateway sends progress, unless the request sets it
	progressMin   = 100 * time.Millisecond // the bounds that a gateway has for it
	progressMax   = 60 * time.Second
	missedMax     = 3               // heartbeats
	silenceMin    = 2 * time.Second // a busy machine may pause that long
	backoffMin    = 100 * time.Millisecond
	backoffMax    = 5 * time.Second // a gateway with too many streams asks for more

	phaseReset, phaseCatchingUp, phaseCurrent protoreflect.EnumNumber = 1, 2, 3 // SubscribePhase
)

// subscriber has the rules: what it asks, what a response means, and what a broken stream leads to. No I/O, no clock.
// They are those of the Python client, and the same scenarios (clients/scenarios.txt) hold both to them.
//
// Decision: docs/decisions/0020-client-rules-without-io.md
type subscriber[Row proto.Message] struct {
	token    string // where the consumer's copy is, "" for nowhere
	restarts bool   // a refused token begins anew instead of ending
	random   func(most time.Duration) time.Duration

	fields     *responseFields
	asked      proto.Message
	options    protoreflect.Message // SubscribeOptions, in asked
	failures   int
	isAdmitted bool // whether the stream has brought anything
}

func newSubscriber[Row proto.Message](
	request proto.Message, response protoreflect.MessageDescriptor, token string, restarts bool,
	random func(time.Duration) time.Duration,
) (*subscriber[Row], error) {
	field, err := fieldOfType(request.ProtoReflect().Descriptor(), subscribeOptions)
	if err != nil {
		return nil, err
	}
	fields, err := responseFieldsOf(response)
	if err != nil {
		return nil, err
	}
	var row Row
	if any(row) != nil && row.ProtoReflect().Descriptor().FullName() != fields.row.Message().FullName() {
		return nil, mismatch("%s has rows of %s, not of %s",
			response.FullName(), fields.row.Message().FullName(), row.ProtoReflect().Descriptor().FullName())
	}
	asked := proto.Clone(request)
	options := asked.ProtoReflect().Mutable(field).Message()
	if token == "" {
		token = named(options, "resume_token").String()
	}
	return &subscriber[Row]{
		token: token, restarts: restarts, random: random, fields: fields, asked: asked, options: options,
	}, nil
}

// silence is how long without a message a stream is alive.
func (s *subscriber[Row]) silence() time.Duration {
	interval := progressEvery
	if field := s.option("progress_interval"); s.options.Has(field) {
		interval = durationOf(s.options.Get(field).Message())
	}
	return max(silenceMin, missedMax*min(max(interval, progressMin), progressMax))
}

func (s *subscriber[Row]) option(name protoreflect.Name) protoreflect.FieldDescriptor {
	return s.options.Descriptor().Fields().ByName(name)
}

// request returns the request of the next stream.
func (s *subscriber[Row]) request() proto.Message {
	s.options.Set(s.option("resume_token"), protoreflect.ValueOfString(s.token))
	s.isAdmitted = false
	return proto.Clone(s.asked)
}

// receive returns the events of a response; token is then that of a consumer which has all of them.
func (s *subscriber[Row]) receive(response protoreflect.Message) []Event[Row] {
	s.isAdmitted = true
	progress := response.Get(s.fields.progress).Message()
	if token := named(progress, "resume_token").String(); token != "" {
		s.token = token
	}
	phase := named(progress, "phase").Enum()
	changes := response.Get(s.fields.changes).List()
	events := make([]Event[Row], 0, changes.Len()+1)
	if phase == phaseReset {
		events = append(events, Event[Row]{Kind: Reset, Token: s.token})
	}
	for i := range changes.Len() {
		key, message, isRow := s.fields.keyOf(changes.Get(i).Message())
		if isRow {
			events = append(events, Event[Row]{Kind: Upsert, Key: key, Row: message.Interface().(Row)})
		} else if key != nil {
			events = append(events, Event[Row]{Kind: Delete, Key: key})
		}
	}
	switch phase {
	case phaseCatchingUp:
		events = append(events, Event[Row]{Kind: CatchingUp, Token: s.token})
	case phaseCurrent:
		info := named(progress, "read_info").Message()
		events = append(events, Event[Row]{
			Kind:             Current,
			AsOf:             timeOf(named(info, "as_of_time").Message()),
			ConsistencyToken: named(info, "consistency_token").String(),
			Token:            s.token,
		})
	}
	if phase != phaseReset {
		s.failures = 0 // the stream brought the copy forward
	}
	return events
}

// disconnected returns the event of a stream that ended, with the wait before the next; or a *SubscribeError.
func (s *subscriber[Row]) disconnected(why failure) (Event[Row], error) {
	refused := &SubscribeError{Code: why.code, Reason: why.reason, Text: why.text}
	if why.reason == "INVALID_RESUME_TOKEN" {
		if !s.restarts || s.token == "" {
			refused.Text += "; drop your copy and the stored token, or subscribe with Restart()"
			return Event[Row]{}, refused
		}
		s.token = ""
		s.options.Clear(s.option("start")) // what was missed comes with a snapshot only
	} else if !why.passes() && !(s.isAdmitted && why.passesOnceAdmitted()) {
		return Event[Row]{}, refused
	}
	most := min(backoffMax, backoffMin<<min(s.failures, 16))
	s.failures++
	return Event[Row]{
		Kind: Disconnected, Code: why.code, Reason: why.reason, Text: why.text,
		RetryAfter: why.retryAfter + s.random(most),
	}, nil
}
