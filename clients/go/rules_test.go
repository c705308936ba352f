package tablegate

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A contract as its descriptors say it, whose names are its own: what this client reads of one.
const (
	queryFile = `name: "query.proto" package: "tablegate.v1" syntax: "proto3"
		enum_type { name: "SubscribePhase" value { name: "SUBSCRIBE_PHASE_UNSPECIFIED" number: 0 } }
		message_type { name: "SubscribeOptions"
			field { name: "resume_token" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
			field { name: "start" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
		message_type { name: "SubscribeProgress"
			field { name: "phase" number: 1 type: TYPE_ENUM label: LABEL_OPTIONAL type_name: ".tablegate.v1.SubscribePhase" }
			field { name: "resume_token" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }`
	parcelsFile = `name: "parcels.proto" package: "parcels" syntax: "proto3" dependency: "query.proto"
		message_type { name: "Parcel"
			field { name: "depot" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
			field { name: "number" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
			field { name: "weight" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL } }
		message_type { name: "ParcelKey"
			field { name: "depot" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
			field { name: "number" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
		message_type { name: "Watched" field { name: "how" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".tablegate.v1.SubscribeOptions" } }
		message_type { name: "Moved" oneof_decl { name: "what" }
			field { name: "gone" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL oneof_index: 0 type_name: ".parcels.ParcelKey" }
			field { name: "there" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL oneof_index: 0 type_name: ".parcels.Parcel" } }
		message_type { name: "Seen"
			field { name: "moved" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".parcels.Moved" }
			field { name: "so_far" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".tablegate.v1.SubscribeProgress" } }`
)

// parcels returns the messages of the contract; key is what the annotation says, nil for none.
func parcels(t *testing.T, key ...string) protoreflect.MessageDescriptors {
	t.Helper()
	files := &protoregistry.Files{}
	var file protoreflect.FileDescriptor
	for _, text := range []string{queryFile, parcelsFile} {
		said := &descriptorpb.FileDescriptorProto{}
		if err := prototext.Unmarshal([]byte(text), said); err != nil {
			t.Fatal(err)
		}
		if said.GetPackage() == "parcels" && key != nil {
			var table []byte
			for _, name := range key {
				table = protowire.AppendString(protowire.AppendTag(table, tableKey, protowire.BytesType), name)
			}
			said.MessageType[0].Options = &descriptorpb.MessageOptions{}
			said.MessageType[0].Options.ProtoReflect().SetUnknown(
				protowire.AppendBytes(protowire.AppendTag(nil, annotation, protowire.BytesType), table))
		}
		made, err := protodesc.NewFile(said, files)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.RegisterFile(made); err != nil {
			t.Fatal(err)
		}
		file = made
	}
	return file.Messages()
}

func TestKeysAreTheSameByTheirValues(t *testing.T) {
	type movie int64
	moment := time.Unix(1, 500)
	same := [][2]Key{{{7}, {int64(7)}}, {{uint32(7)}, {movie(7)}}, {{[]byte{1, 255}}, {[]byte{1, 255}}}, {{moment}, {moment.UTC()}}}
	for _, pair := range same {
		if pair[0].String() != pair[1].String() {
			t.Errorf("%v is not %v", pair[0], pair[1])
		}
	}
	others := []Key{{7}, {"7"}, {-7}, {true}, {"true"}, {"a", "b"}, {"a,b"}, {`a","b`}, {"ab"}, {[]byte{7}}, {time.Unix(7, 0)}}
	texts := map[string]bool{}
	for _, key := range others {
		texts[key.String()] = true
	}
	if len(texts) != len(others) {
		t.Errorf("some of these are the same: %v", slices.Collect(maps.Keys(texts)))
	}
}

func TestAKeyHasTheOrderOfTheAnnotation(t *testing.T) {
	for want, annotated := range map[string][]string{`3,"north"`: {"number", "depot"}, `"north",3`: nil} {
		messages := parcels(t, annotated...)
		fields, err := responseFieldsOf(messages.ByName("Seen"))
		if err != nil {
			t.Fatal(err)
		}
		for choice, name := range map[protoreflect.Name]protoreflect.Name{"there": "Parcel", "gone": "ParcelKey"} {
			message := dynamicpb.NewMessage(messages.ByName(name))
			message.Set(message.Descriptor().Fields().ByName("depot"), protoreflect.ValueOfString("north"))
			message.Set(message.Descriptor().Fields().ByName("number"), protoreflect.ValueOfInt32(3))
			change := dynamicpb.NewMessage(messages.ByName("Moved"))
			change.Set(change.Descriptor().Fields().ByName(choice), protoreflect.ValueOfMessage(message))
			key, _, isRow := fields.keyOf(change)
			if key.String() != want || isRow != (name == "Parcel") {
				t.Errorf("the key of a %s is %v, isRow %v", name, key, isRow)
			}
		}
	}
}

func TestAMessageThatIsNoSubscribesIsRefused(t *testing.T) {
	for _, name := range []protoreflect.Name{"Parcel", "Moved", "Watched"} {
		if _, err := responseFieldsOf(parcels(t).ByName(name)); !errors.Is(err, ErrContractMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func row(number int32, weight int64) Event[proto.Message] {
	return Event[proto.Message]{Kind: Upsert, Key: Key{number}, Row: wrapperspb.Int64(weight)}
}

func TestWhoHasRowsOfAMomentKeepsThem(t *testing.T) {
	var copied rows[proto.Message]
	for _, event := range []Event[proto.Message]{row(1, 1), row(2, 1)} {
		copied.apply(&event)
	}
	before := copied.share()
	one, three := Event[proto.Message]{Kind: Delete, Key: Key{1}}, row(3, 1)
	copied.apply(&one)
	copied.apply(&three)
	for shown, want := range map[*map[string]entry[proto.Message]][]string{&before: {"1", "2"}, &copied.shown: {"2", "3"}} {
		if keys := slices.Sorted(maps.Keys(*shown)); !slices.Equal(keys, want) {
			t.Errorf("there is %v, not %v", keys, want)
		}
	}
}

func TestANewSnapshotIsShownWhole(t *testing.T) {
	var copied rows[proto.Message]
	apply := func(event Event[proto.Message]) []Change[proto.Message] { return copied.apply(&event) }
	for number := range int32(3) {
		apply(row(number, 1))
	}
	first := copied.shown["0"].row
	for _, event := range []Event[proto.Message]{{Kind: Reset}, row(0, 1), row(1, 2)} {
		if changes := apply(event); changes != nil || len(copied.shown) != 3 {
			t.Errorf("after %v: %v, %d rows", event.Kind, changes, len(copied.shown))
		}
	}
	changes := apply(Event[proto.Message]{Kind: Current})
	if len(changes) != 2 || !changes[0].Deleted || changes[0].Key.String() != "2" || changes[1].Key.String() != "1" {
		t.Errorf("readers see %v", changes)
	}
	if copied.shown["0"].row != first {
		t.Error("a row that is equal is another one")
	}
}

func newTestSubscriber(t *testing.T, token string, restarts bool) *subscriber[proto.Message] {
	t.Helper()
	messages := parcels(t)
	made, err := newSubscriber[proto.Message](dynamicpb.NewMessage(messages.ByName("Watched")), messages.ByName("Seen"),
		token, restarts, func(most time.Duration) time.Duration { return most })
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestPausesGrowToABound(t *testing.T) {
	one := newTestSubscriber(t, "", false)
	var pauses []time.Duration
	for range 2_000 {
		event, err := one.disconnected(failure{code: codes.Unavailable})
		if err != nil {
			t.Fatal(err)
		}
		pauses = append(pauses, event.RetryAfter/time.Millisecond)
	}
	if !slices.Equal(pauses[:4], []time.Duration{100, 200, 400, 800}) || pauses[1_999] != 5_000 {
		t.Error(pauses[:4], pauses[1_999])
	}
	event, err := one.disconnected(failure{code: codes.Unavailable, retryAfter: time.Hour})
	if err != nil || event.RetryAfter != time.Hour+5*time.Second {
		t.Error("the gateway asks for an hour:", event.RetryAfter, err)
	}
}

func TestARefusedTokenIsToldOrLeftBehindOnce(t *testing.T) {
	refused := failure{code: codes.InvalidArgument, text: "it is damaged", reason: "INVALID_RESUME_TOKEN"}
	_, err := newTestSubscriber(t, "junk", false).disconnected(refused)
	var told *SubscribeError
	if !errors.As(err, &told) || told.Reason != "INVALID_RESUME_TOKEN" {
		t.Error(err)
	}
	one := newTestSubscriber(t, "junk", true)
	if _, err := one.disconnected(refused); err != nil || one.token != "" {
		t.Error(one.token, err)
	}
	if _, err := one.disconnected(refused); err == nil {
		t.Error("without a token it is no matter of tokens")
	}
}

func TestOnlyWhatPassesIsTriedAgain(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled} {
		if !failureOf(status.Error(code, "so it is")).passes() {
			t.Error(code, "passes")
		}
	}
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Internal, codes.Unauthenticated, codes.ResourceExhausted} {
		if failureOf(status.Error(code, "so it is")).passes() {
			t.Error(code, "does not pass")
		}
	}
	if failureOf(errors.New("of no gateway")).passes() {
		t.Error("what has no status does not pass")
	}
}

func TestACredentialThatEndsIsShownAnewOnce(t *testing.T) {
	one := newTestSubscriber(t, "", false)
	ended := failure{code: codes.Unauthenticated, reason: "NOT_AUTHENTICATED"}
	one.request()
	one.receive(dynamicpb.NewMessage(one.fields.progress.ContainingMessage()))
	if _, err := one.disconnected(ended); err != nil {
		t.Error("the stream was admitted:", err)
	}
	one.request()
	if _, err := one.disconnected(ended); err == nil {
		t.Error("this stream was not")
	}
}

func TestAStreamThatIsCutOffIsOpenedAgainOnceItBegan(t *testing.T) {
	one := newTestSubscriber(t, "", false)
	for _, code := range []codes.Code{codes.Internal, codes.Unknown} {
		one.request()
		if _, err := one.disconnected(failure{code: code}); err == nil {
			t.Error(code, "of a stream that brought nothing")
		}
		one.receive(dynamicpb.NewMessage(one.fields.progress.ContainingMessage()))
		if _, err := one.disconnected(failure{code: code}); err != nil {
			t.Error("the stream was admitted:", err)
		}
		if _, err := one.disconnected(failure{code: code, reason: "INTERNAL"}); err == nil {
			t.Error(code, "is the gateway's word where it has a reason")
		}
	}
}

func TestDetailsOfOthersSayNothing(t *testing.T) {
	for domain, want := range map[string]string{"tablegate": "INVALID_FIELD", "proxy.example": ""} {
		said, err := status.New(codes.InvalidArgument, "no").WithDetails(&errdetails.ErrorInfo{Reason: "INVALID_FIELD", Domain: domain})
		if err != nil {
			t.Fatal(err)
		}
		if reason := Reason(said.Err()); reason != want {
			t.Errorf("%s: %q", domain, reason)
		}
	}
}

func TestATokenFileHoldsOneWholeToken(t *testing.T) {
	file := TokenFile(t.TempDir() + "/token")
	for _, want := range []string{"", "1.first", "1.second"} {
		if want != "" {
			if err := file.Save(want); err != nil {
				t.Fatal(err)
			}
		}
		if token, err := TokenFile(file).Load(); token != want || err != nil {
			t.Errorf("%q, %v; not %q", token, err, want)
		}
	}
}
