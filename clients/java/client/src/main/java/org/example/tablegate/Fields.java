package org.example.tablegate;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.OneofDescriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.UnknownFieldSet;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.PrototypeMarshaller;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/**
 * Fields of a contract's messages are found by their types, as a contract may name them freely. Those of tablegate.v1
 * are read by name: their code is the application's own, where it has any.
 */
final class Fields {
  static final String SUBSCRIBE_OPTIONS = "tablegate.v1.SubscribeOptions";
  static final String READ_OPTIONS = "tablegate.v1.ReadOptions";
  private static final String SUBSCRIBE_PROGRESS = "tablegate.v1.SubscribeProgress";
  private static final int ANNOTATION = 50731; // (tablegate.v1.table) of messages
  private static final int TABLE_KEY = 2; // TableOptions.key

  private Fields() {}

  /** Returns the message without anything in it that a method answers. */
  static Message answered(MethodDescriptor<?, ?> method) {
    if (method.getResponseMarshaller() instanceof PrototypeMarshaller) {
      Object prototype = ((PrototypeMarshaller<?>) method.getResponseMarshaller()).getMessagePrototype();
      if (prototype instanceof Message) {
        return (Message) prototype;
      }
    }
    throw new ContractMismatchException(
        method.getFullMethodName()
            + " has no messages with descriptors: generate code for protobuf-java, not its lite one");
  }

  /** Returns the one field of this type. */
  static FieldDescriptor ofType(Descriptor message, String typeName) {
    for (FieldDescriptor field : message.getFields()) {
      if (isMessage(field) && field.getMessageType().getFullName().equals(typeName)) {
        return field;
      }
    }
    throw new ContractMismatchException(
        message.getFullName() + " has no field of type " + typeName + ": it is no message of that query");
  }

  private static boolean isMessage(FieldDescriptor field) {
    return field.getJavaType() == FieldDescriptor.JavaType.MESSAGE;
  }

  /** What there is in a Subscribe's response. */
  static final class Response {
    final FieldDescriptor progress;
    final FieldDescriptor changes;
    final FieldDescriptor row;
    private final OneofDescriptor choice;
    private final List<FieldDescriptor> rowKey; // key columns in a row
    private final List<FieldDescriptor> keyKey; // those in a key message

    private Response(
        FieldDescriptor progress,
        FieldDescriptor changes,
        FieldDescriptor row,
        List<FieldDescriptor> rowKey,
        List<FieldDescriptor> keyKey) {
      this.progress = progress;
      this.changes = changes;
      this.row = row;
      this.choice = row.getContainingOneof();
      this.rowKey = rowKey;
      this.keyKey = keyKey;
    }

    /** Returns the event of a change; null of one that says nothing. */
    <Row extends Message> Event<Row> event(Message change, Class<Row> rows) {
      FieldDescriptor chosen = change.getOneofFieldDescriptor(choice);
      if (chosen == null) {
        return null;
      }
      Message message = (Message) change.getField(chosen);
      boolean isRow = chosen.equals(row);
      List<Object> key = new ArrayList<>(rowKey.size());
      for (FieldDescriptor column : isRow ? rowKey : keyKey) {
        Object value = message.getField(column);
        key.add(isMessage(column) ? time((Message) value) : value);
      }
      return Event.change(Key.of(key), isRow ? rows.cast(message) : null);
    }
  }

  static Response response(Descriptor response) {
    FieldDescriptor progress = ofType(response, SUBSCRIBE_PROGRESS);
    for (FieldDescriptor field : response.getFields()) {
      if (field.isRepeated() && columnCount(field) == 2) {
        return withChange(progress, field);
      }
    }
    throw new ContractMismatchException(
        response.getFullName() + " repeats no message with a row and a key: it is no Subscribe's");
  }

  private static Response withChange(FieldDescriptor progress, FieldDescriptor changes) {
    Descriptor change = changes.getMessageType();
    FieldDescriptor row = change.getFields().get(0);
    FieldDescriptor key = change.getFields().get(1);
    if (!keyColumns(key).isEmpty() || columnCount(key) > columnCount(row)) {
      FieldDescriptor other = row;
      row = key;
      key = other;
    }
    if (!isMessage(row) || !isMessage(key) || row.getContainingOneof() == null) {
      throw new ContractMismatchException(
          change.getFullName() + " is no choice of a row and a key: it is no Subscribe's");
    }
    List<String> names = keyColumns(row);
    if (names.isEmpty()) {
      // Generated without the annotations: then the row is what has more columns.
      if (columnCount(row) <= columnCount(key)) {
        throw new ContractMismatchException(
            change.getFullName()
                + " does not tell its row from its key: generate code from the contract with its annotations");
      }
      for (FieldDescriptor column : key.getMessageType().getFields()) {
        names.add(column.getName());
      }
    }
    return new Response(progress, changes, row, columns(row, names), columns(key, names));
  }

  private static List<FieldDescriptor> columns(FieldDescriptor of, List<String> names) {
    List<FieldDescriptor> columns = new ArrayList<>();
    for (String name : names) {
      FieldDescriptor column = of.getMessageType().findFieldByName(name);
      if (column == null) {
        throw new ContractMismatchException(
            of.getMessageType().getFullName() + " has no field " + name + ", which is in its key");
      }
      columns.add(column);
    }
    return columns;
  }

  private static int columnCount(FieldDescriptor field) {
    return isMessage(field) ? field.getMessageType().getFields().size() : 0;
  }

  /**
   * Returns the key columns that the annotation of a row names; none where there is no annotation. It is read by its
   * number, whether or not the application has generated code of the annotations.
   */
  private static List<String> keyColumns(FieldDescriptor field) {
    List<String> names = new ArrayList<>();
    if (!isMessage(field)) {
      return names;
    }
    try {
      UnknownFieldSet options = UnknownFieldSet.parseFrom(field.getMessageType().getOptions().toByteString());
      for (ByteString table : options.getField(ANNOTATION).getLengthDelimitedList()) {
        for (ByteString name : UnknownFieldSet.parseFrom(table).getField(TABLE_KEY).getLengthDelimitedList()) {
          names.add(name.toStringUtf8());
        }
      }
    } catch (InvalidProtocolBufferException error) {
      throw new ContractMismatchException(
          field.getMessageType().getFullName() + " has an annotation that is no TableOptions");
    }
    return names;
  }

  /** Returns the time of a google.protobuf.Timestamp. */
  static Instant time(Message timestamp) {
    return Instant.ofEpochSecond((Long) named(timestamp, "seconds"), (Integer) named(timestamp, "nanos"));
  }

  /** Returns that of a google.protobuf.Duration. */
  static Duration duration(Message duration) {
    return Duration.ofSeconds((Long) named(duration, "seconds"), (Integer) named(duration, "nanos"));
  }

  /** Returns the value of a field of a message that is not the contract's own. */
  static Object named(Message message, String name) {
    return message.getField(field(message, name));
  }

  static FieldDescriptor field(Message message, String name) {
    return message.getDescriptorForType().findFieldByName(name);
  }
}
