package org.example.tablegate;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.util.Map;
import java.util.TreeMap;

/** How fresh an answer is to be, and what a gateway says of one that it refuses. */
public final class Reads {
  private Reads() {}

  /**
   * Returns the request, asking for an answer with these records of the table's source topics in it: read your writes.
   * The gateway waits for them as long as max_wait says, or half of the deadline; then it answers UNAVAILABLE,
   * NOT_CAUGHT_UP.
   *
   * @throws ContractMismatchException the request has no ReadOptions
   */
  public static <Q extends Message> Q atLeastSource(Q request, SourceRecord... acknowledged) {
    FieldDescriptor options = Fields.ofType(request.getDescriptorForType(), Fields.READ_OPTIONS);
    Message before = (Message) request.getField(options);
    FieldDescriptor field = Fields.field(before, "at_least_source");
    Map<String, Map<Integer, Long>> topics = offsets((Message) before.getField(field));
    for (SourceRecord record : acknowledged) {
      topics.computeIfAbsent(record.topic, topic -> new TreeMap<>()).merge(record.partition, record.offset, Math::max);
    }
    return with(request, options, before, field, position(before.toBuilder().newBuilderForField(field), topics));
  }

  /**
   * Returns the request, asking for an answer at least as fresh as the one that gave this consistency token. Of a live
   * table it is that of its {@link LiveTable#status}.
   *
   * @throws ContractMismatchException the request has no ReadOptions
   */
  public static <Q extends Message> Q atLeast(Q request, String consistencyToken) {
    FieldDescriptor options = Fields.ofType(request.getDescriptorForType(), Fields.READ_OPTIONS);
    Message before = (Message) request.getField(options);
    return with(request, options, before, Fields.field(before, "at_least"), consistencyToken);
  }

  /** Returns the gateway's reason of what a call threw, as ROW_NOT_FOUND; "" where a gateway gave none. */
  public static String reason(Throwable thrown) {
    return Failure.of(thrown).reason;
  }

  @SuppressWarnings("unchecked") // a builder makes messages of the type that it comes from
  private static <Q extends Message> Q with(
      Q request, FieldDescriptor options, Message before, FieldDescriptor field, Object value) {
    Message made = before.toBuilder().setField(field, value).build();
    return (Q) request.toBuilder().setField(options, made).build();
  }

  /** Returns topic → partition → offset of a SourcePosition. */
  private static Map<String, Map<Integer, Long>> offsets(Message position) {
    Map<String, Map<Integer, Long>> topics = new TreeMap<>();
    FieldDescriptor field = Fields.field(position, "topics");
    for (int i = 0; i < position.getRepeatedFieldCount(field); i++) {
      Message topic = (Message) position.getRepeatedField(field, i);
      String name = (String) Fields.named(topic, "topic");
      Map<Integer, Long> offsets = topics.computeIfAbsent(name, each -> new TreeMap<>());
      FieldDescriptor entries = Fields.field(topic, "offsets");
      for (int j = 0; j < topic.getRepeatedFieldCount(entries); j++) {
        Message entry = (Message) topic.getRepeatedField(entries, j);
        offsets.merge((Integer) Fields.named(entry, "key"), (Long) Fields.named(entry, "value"), Math::max);
      }
    }
    return topics;
  }

  private static Message position(Message.Builder position, Map<String, Map<Integer, Long>> topics) {
    FieldDescriptor field = position.getDescriptorForType().findFieldByName("topics");
    topics.forEach(
        (name, offsets) -> {
          Message.Builder topic = position.newBuilderForField(field);
          FieldDescriptor entries = field.getMessageType().findFieldByName("offsets");
          topic.setField(field.getMessageType().findFieldByName("topic"), name);
          offsets.forEach(
              (partition, offset) -> {
                Message.Builder entry = topic.newBuilderForField(entries);
                entry.setField(entries.getMessageType().findFieldByName("key"), partition);
                entry.setField(entries.getMessageType().findFieldByName("value"), offset);
                topic.addRepeatedField(entries, entry.build());
              });
          position.addRepeatedField(field, topic.build());
        });
    return position.build();
  }
}
