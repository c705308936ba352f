package tablegate

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// SourceRecord is where a record of a source topic is: what a producer's acknowledgement says.
type SourceRecord struct {
	Topic     string
	Partition int32
	Offset    int64
}

// AtLeastSource returns the request, asking for an answer with these records of the table's source topics in it: read
// your writes. The gateway waits for them as long as max_wait says, or half of the deadline; then it answers
// UNAVAILABLE, NOT_CAUGHT_UP. ErrContractMismatch: the request has no ReadOptions.
func AtLeastSource[Request proto.Message](request Request, acknowledged ...SourceRecord) (Request, error) {
	made, options, err := withReadOptions(request)
	if err != nil {
		return made, err
	}
	position := options.Mutable(field(options, "at_least_source")).Message()
	topics := position.Mutable(field(position, "topics")).List()
	for _, record := range acknowledged {
		if record.Topic == "" || record.Partition < 0 || record.Offset < 0 {
			return made, fmt.Errorf("the record at %q/%d/%d is not acknowledged: give what the producer got, with acks=1 or acks=all",
				record.Topic, record.Partition, record.Offset)
		}
		topic := topicOf(topics, record.Topic)
		offsets := topic.Mutable(field(topic, "offsets")).Map()
		partition := protoreflect.ValueOfInt32(record.Partition).MapKey()
		if known := offsets.Get(partition); !known.IsValid() || known.Int() < record.Offset {
			offsets.Set(partition, protoreflect.ValueOfInt64(record.Offset))
		}
	}
	return made, nil
}

func topicOf(topics protoreflect.List, name string) protoreflect.Message {
	for i := range topics.Len() {
		if topic := topics.Get(i).Message(); named(topic, "topic").String() == name {
			return topic
		}
	}
	topic := topics.AppendMutable().Message()
	topic.Set(field(topic, "topic"), protoreflect.ValueOfString(name))
	return topic
}

// AtLeast returns the request, asking for an answer at least as fresh as the one that gave this consistency token. Of a
// live table it is Status().ConsistencyToken. ErrContractMismatch: the request has no ReadOptions.
func AtLeast[Request proto.Message](request Request, consistencyToken string) (Request, error) {
	made, options, err := withReadOptions(request)
	if err == nil {
		options.Set(field(options, "at_least"), protoreflect.ValueOfString(consistencyToken))
	}
	return made, err
}

// withReadOptions returns a copy of a request, and the ReadOptions in it.
func withReadOptions[Request proto.Message](request Request) (Request, protoreflect.Message, error) {
	found, err := fieldOfType(request.ProtoReflect().Descriptor(), readOptions)
	if err != nil {
		return request, nil, err
	}
	made := proto.Clone(request).(Request)
	return made, made.ProtoReflect().Mutable(found).Message(), nil
}

func field(message protoreflect.Message, name protoreflect.Name) protoreflect.FieldDescriptor {
	return message.Descriptor().Fields().ByName(name)
}
