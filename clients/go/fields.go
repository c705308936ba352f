package tablegate

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fields of a contract's messages are found by their types, as a contract may name them freely. Those of tablegate.v1
// are read by name: code generated from it here would clash with the application's own in protobuf's registry.

const (
	subscribeOptions  protoreflect.FullName = "tablegate.v1.SubscribeOptions"
	subscribeProgress protoreflect.FullName = "tablegate.v1.SubscribeProgress"
	readOptions       protoreflect.FullName = "tablegate.v1.ReadOptions"

	annotation protowire.Number = 50731 // (tablegate.v1.table) of messages
	tableKey   protowire.Number = 2     // TableOptions.key
)

// ErrContractMismatch is of a message that is none of the query; the error's text says what is missing.
var ErrContractMismatch = errors.New("contract mismatch")

func mismatch(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrContractMismatch, fmt.Sprintf(format, values...))
}

// responseFields is what there is in a Subscribe's response.
type responseFields struct {
	progress, changes protoreflect.FieldDescriptor
	choice            protoreflect.OneofDescriptor
	row               protoreflect.FieldDescriptor
	rowKey, keyKey    []protoreflect.FieldDescriptor // key columns in a row, and in a key message
}

// fieldOfType returns the one field of this type.
func fieldOfType(message protoreflect.MessageDescriptor, typeName protoreflect.FullName) (protoreflect.FieldDescriptor, error) {
	for i := range message.Fields().Len() {
		if field := message.Fields().Get(i); field.Message() != nil && field.Message().FullName() == typeName {
			return field, nil
		}
	}
	return nil, mismatch("%s has no field of type %s: it is no message of that query", message.FullName(), typeName)
}

func responseFieldsOf(response protoreflect.MessageDescriptor) (*responseFields, error) {
	progress, err := fieldOfType(response, subscribeProgress)
	if err != nil {
		return nil, err
	}
	for i := range response.Fields().Len() {
		field := response.Fields().Get(i)
		if field.IsList() && field.Message() != nil && field.Message().Fields().Len() == 2 {
			return withChange(progress, field)
		}
	}
	return nil, mismatch("%s repeats no message with a row and a key: it is no Subscribe's", response.FullName())
}

func withChange(progress, changes protoreflect.FieldDescriptor) (*responseFields, error) {
	change := changes.Message()
	row, key := change.Fields().Get(0), change.Fields().Get(1)
	if len(keyColumns(key.Message())) > 0 || columnCount(key) > columnCount(row) {
		row, key = key, row
	}
	if row.Message() == nil || key.Message() == nil || row.ContainingOneof() == nil {
		return nil, mismatch("%s is no choice of a row and a key: it is no Subscribe's", change.FullName())
	}
	names := keyColumns(row.Message())
	if len(names) == 0 {
		// Generated without the annotations: then the row is what has more columns.
		if columnCount(row) <= columnCount(key) {
			return nil, mismatch("%s does not tell its row from its key: generate code from the contract with its annotations",
				change.FullName())
		}
		for i := range key.Message().Fields().Len() {
			names = append(names, key.Message().Fields().Get(i).Name())
		}
	}
	fields := &responseFields{progress: progress, changes: changes, choice: row.ContainingOneof(), row: row}
	for _, name := range names {
		inRow, inKey := row.Message().Fields().ByName(name), key.Message().Fields().ByName(name)
		if inRow == nil || inKey == nil {
			return nil, mismatch("%s or its key has no field %s, which is in its key", row.Message().FullName(), name)
		}
		fields.rowKey = append(fields.rowKey, inRow)
		fields.keyKey = append(fields.keyKey, inKey)
	}
	return fields, nil
}

func columnCount(field protoreflect.FieldDescriptor) int {
	if field.Message() == nil {
		return 0
	}
	return field.Message().Fields().Len()
}

// keyColumns returns the key columns that the annotation of a row names; none where there is no annotation. It is read
// by its number, whether or not the application has generated code of the annotations.
func keyColumns(message protoreflect.MessageDescriptor) []protoreflect.Name {
	if message == nil {
		return nil
	}
	options, err := proto.Marshal(message.Options())
	if err != nil {
		return nil
	}
	var names []protoreflect.Name
	for _, table := range numbered(options, annotation) {
		for _, name := range numbered(table, tableKey) {
			names = append(names, protoreflect.Name(name))
		}
	}
	return names
}

// numbered returns the texts and messages that a message has under a number.
func numbered(data []byte, wanted protowire.Number) [][]byte {
	var found [][]byte
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return found
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			return found
		}
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data)
			found = append(found, value)
		}
		data = data[size:]
	}
	return found
}

// keyOf returns the key in a message of a change, and whether that is a row.
func (f *responseFields) keyOf(change protoreflect.Message) (key Key, message protoreflect.Message, isRow bool) {
	chosen := change.WhichOneof(f.choice)
	if chosen == nil {
		return nil, nil, false
	}
	message = change.Get(chosen).Message()
	columns := f.keyKey
	if isRow = chosen.Number() == f.row.Number(); isRow {
		columns = f.rowKey
	}
	key = make(Key, len(columns))
	for i, column := range columns {
		key[i] = keyValue(column, message.Get(column))
	}
	return key, message, isRow
}

func keyValue(column protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch column.Kind() {
	case protoreflect.MessageKind:
		return timeOf(value.Message())
	case protoreflect.EnumKind:
		return int32(value.Enum())
	default:
		return value.Interface()
	}
}

// timeOf returns the time of a google.protobuf.Timestamp.
func timeOf(timestamp protoreflect.Message) time.Time {
	return time.Unix(secondsOf(timestamp)).UTC()
}

// durationOf returns that of a google.protobuf.Duration.
func durationOf(duration protoreflect.Message) time.Duration {
	seconds, nanos := secondsOf(duration)
	return time.Duration(seconds)*time.Second + time.Duration(nanos)
}

func secondsOf(message protoreflect.Message) (seconds, nanos int64) {
	return named(message, "seconds").Int(), named(message, "nanos").Int()
}

// named returns the value of a field of a message that is not the contract's own.
func named(message protoreflect.Message, name protoreflect.Name) protoreflect.Value {
	return message.Get(message.Descriptor().Fields().ByName(name))
}
