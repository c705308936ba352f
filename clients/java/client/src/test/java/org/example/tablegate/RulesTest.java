package org.example.tablegate;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.DescriptorProtos.MessageOptions;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Int64Value;
import com.google.protobuf.Message;
import com.google.protobuf.NullValue;
import com.google.protobuf.TextFormat;
import com.google.protobuf.Timestamp;
import com.google.protobuf.UnknownFieldSet;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What of the client needs no gateway. */
final class RulesTest {
  // A contract as its descriptors say it, whose names are its own: what this client reads of one.
  private static final String QUERY_FILE =
      "name: 'query.proto' package: 'tablegate.v1' syntax: 'proto3'"
          + " enum_type { name: 'SubscribePhase' value { name: 'SUBSCRIBE_PHASE_UNSPECIFIED' number: 0 } }"
          + " message_type { name: 'SubscribeOptions'"
          + "   field { name: 'resume_token' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }"
          + "   field { name: 'start' number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }"
          + " message_type { name: 'SubscribeProgress'"
          + "   field { name: 'phase' number: 1 type: TYPE_ENUM label: LABEL_OPTIONAL"
          + "     type_name: '.tablegate.v1.SubscribePhase' }"
          + "   field { name: 'resume_token' number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }";
  private static final String PARCELS_FILE =
      "name: 'parcels.proto' package: 'parcels' syntax: 'proto3' dependency: 'query.proto'"
          + " message_type { name: 'Parcel'"
          + "   field { name: 'depot' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }"
          + "   field { name: 'number' number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }"
          + "   field { name: 'weight' number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL } }"
          + " message_type { name: 'ParcelKey'"
          + "   field { name: 'depot' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }"
          + "   field { name: 'number' number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }"
          + " message_type { name: 'Watched'"
          + "   field { name: 'how' number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL"
          + "     type_name: '.tablegate.v1.SubscribeOptions' } }"
          + " message_type { name: 'Moved' oneof_decl { name: 'what' }"
          + "   field { name: 'gone' number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL oneof_index: 0"
          + "     type_name: '.parcels.ParcelKey' }"
          + "   field { name: 'there' number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL oneof_index: 0"
          + "     type_name: '.parcels.Parcel' } }"
          + " message_type { name: 'Seen'"
          + "   field { name: 'moved' number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED"
          + "     type_name: '.parcels.Moved' }"
          + "   field { name: 'so_far' number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL"
          + "     type_name: '.tablegate.v1.SubscribeProgress' } }"
          + " service { name: 'Parcels'"
          + "   method { name: 'Watch' input_type: '.parcels.Watched' output_type: '.parcels.Seen' server_streaming: true }"
          + "   method { name: 'Weigh' input_type: '.parcels.ParcelKey' output_type: '.parcels.Parcel' } }";
  private static final String WATCH = "parcels.Parcels/Watch";

  /** Returns the contract; {@code key} is what the annotation says, nothing where there is none. */
  private static FileDescriptorSet parcels(String... key) throws IOException {
    var parcels = FileDescriptorProto.newBuilder();
    TextFormat.merge(PARCELS_FILE, parcels);
    if (key.length > 0) {
      var names = UnknownFieldSet.Field.newBuilder();
      Stream.of(key).map(ByteString::copyFromUtf8).forEach(names::addLengthDelimited);
      ByteString table = UnknownFieldSet.newBuilder().addField(2, names.build()).build().toByteString();
      var annotation = UnknownFieldSet.Field.newBuilder().addLengthDelimited(table).build();
      var options = UnknownFieldSet.newBuilder().addField(50731, annotation).build();
      parcels.getMessageTypeBuilder(0).setOptions(MessageOptions.newBuilder().setUnknownFields(options));
    }
    var query = FileDescriptorProto.newBuilder();
    TextFormat.merge(QUERY_FILE, query);
    // What imports comes first: no order is asked for.
    return FileDescriptorSet.newBuilder().addFile(parcels).addFile(query).build();
  }

  private static Subscriber<DynamicMessage, DynamicMessage> subscriber(String token, boolean restarts)
      throws IOException {
    return subscriber(Contract.of(parcels()).method(WATCH), token, restarts);
  }

  private static Subscriber<DynamicMessage, DynamicMessage> subscriber(
      MethodDescriptor<DynamicMessage, DynamicMessage> method, String token, boolean restarts) {
    return new Subscriber<>(
        Contract.request(method).build(),
        Fields.answered(method),
        DynamicMessage.class,
        token,
        restarts,
        most -> most);
  }

  @Test
  void keysAreTheSameByTheirValues() {
    Instant moment = Instant.ofEpochSecond(1, 500);
    assertEquals(Key.of(7), Key.of(7L));
    assertEquals(Key.of((short) 7), Key.of((byte) 7));
    assertEquals(Key.of(NullValue.NULL_VALUE), Key.of(0));
    assertEquals(Key.of(Timestamp.newBuilder().setSeconds(1).setNanos(500).build()), Key.of(moment));
    assertEquals(Key.of((Object) new byte[] {1, -1}), Key.of(ByteString.copyFrom(new byte[] {1, -1})));
    assertEquals(Key.of("a", 1).hashCode(), Key.of("a", 1L).hashCode());
    var others =
        List.of(
            Key.of(7), Key.of("7"), Key.of(-7), Key.of(true), Key.of("true"),
            Key.of("a", "b"), Key.of("a,b"), Key.of(moment));
    assertEquals(others.size(), new HashSet<>(others).size());
    assertThrows(NullPointerException.class, () -> Key.of("a", null));
  }

  @Test
  void aKeyHasTheOrderOfTheAnnotation() throws IOException {
    for (String[] annotated : new String[][] {{"number", "depot"}, {}}) {
      Key wanted = annotated.length == 0 ? Key.of("north", 3) : Key.of(3, "north");
      Descriptor seen = Fields.answered(Contract.of(parcels(annotated)).method(WATCH)).getDescriptorForType();
      Fields.Response fields = Fields.response(seen);
      Descriptor moved = fields.changes.getMessageType();
      for (String choice : List.of("there", "gone")) {
        Descriptor type = moved.findFieldByName(choice).getMessageType();
        var message =
            DynamicMessage.newBuilder(type)
                .setField(type.findFieldByName("depot"), "north")
                .setField(type.findFieldByName("number"), 3)
                .build();
        var change = DynamicMessage.newBuilder(moved).setField(moved.findFieldByName(choice), message).build();
        Event<DynamicMessage> event = fields.event(change, DynamicMessage.class);
        assertEquals(wanted, event.key());
        assertEquals(choice.equals("there") ? Event.Kind.UPSERT : Event.Kind.DELETE, event.kind());
      }
    }
  }

  @Test
  void aMessageThatIsNoSubscribesIsRefused() throws IOException {
    Contract contract = Contract.of(parcels());
    var weigh = contract.method("parcels.Parcels/Weigh");
    assertEquals(MethodDescriptor.MethodType.UNARY, weigh.getType());
    assertThrows(ContractMismatchException.class, () -> Fields.response(Fields.answered(weigh).getDescriptorForType()));
    var watch = contract.method(WATCH);
    assertThrows(
        ContractMismatchException.class,
        () -> Subscription.of(null, watch, Contract.request(watch).build(), Int64Value.class).open());
  }

  @Test
  void aContractSaysWhatItDoesNotHave(@TempDir Path directory) throws IOException {
    Path file = Files.write(directory.resolve("parcels.binpb"), parcels().toByteArray());
    Contract contract = Contract.read(file);
    for (String name : List.of("parcels.Parcels/Wash", "parcels.Parcel/Watch", "Watch")) {
      var error = assertThrows(ContractMismatchException.class, () -> contract.method(name));
      assertTrue(error.getMessage().contains(name), error.getMessage());
    }
    FileDescriptorSet alone = parcels().toBuilder().removeFile(1).build();
    var error = assertThrows(ContractMismatchException.class, () -> Contract.of(alone));
    assertTrue(error.getMessage().contains("query.proto"), error.getMessage());
  }

  private static Event<Int64Value> row(int number, long weight) {
    return Event.change(Key.of(number), Int64Value.of(weight));
  }

  @Test
  void whoHasRowsOfAMomentKeepsThem() {
    var rows = new Rows<Int64Value>();
    Stream.of(row(1, 1), row(2, 1)).forEach(rows::apply);
    Map<Key, Int64Value> before = rows.share();
    rows.apply(Event.change(Key.of(1), null));
    rows.apply(row(3, 1));
    assertEquals(Set.of(Key.of(1), Key.of(2)), before.keySet());
    assertEquals(Set.of(Key.of(2), Key.of(3)), rows.shown().keySet());
    assertThrows(UnsupportedOperationException.class, before::clear);
  }

  @Test
  void aNewSnapshotIsShownWhole() {
    var rows = new Rows<Int64Value>();
    Stream.of(row(0, 1), row(1, 1), row(2, 1)).forEach(rows::apply);
    Message first = rows.shown().get(Key.of(0));
    for (Event<Int64Value> event : List.of(Event.<Int64Value>progress(Event.Kind.RESET, ""), row(0, 1), row(1, 2))) {
      assertEquals(List.of(), rows.apply(event));
      assertEquals(3, rows.shown().size());
    }
    List<Change<Int64Value>> changes = rows.apply(Event.current(Instant.EPOCH, "", ""));
    var texts = changes.stream().map(change -> change.toString().trim()).collect(Collectors.toList());
    assertEquals(List.of("2 is gone", "1 is value: 2"), texts);
    assertSame(first, rows.shown().get(Key.of(0)), "a row that is equal is the same one");
  }

  @Test
  void pausesGrowToABound() throws IOException {
    var subscriber = subscriber("", false);
    List<Long> pauses = new ArrayList<>();
    for (int i = 0; i < 2_000; i++) {
      pauses.add(subscriber.disconnected(Failure.broken("it broke")).retryAfter().toMillis());
    }
    assertEquals(List.of(100L, 200L, 400L, 800L), pauses.subList(0, 4));
    assertEquals(5_000, pauses.get(1_999));
    var asked = new Failure(Status.Code.UNAVAILABLE, "", "", Duration.ofHours(1));
    assertEquals(Duration.ofHours(1).plusSeconds(5), subscriber.disconnected(asked).retryAfter());
  }

  @Test
  void aRefusedTokenIsToldOrLeftBehindOnce() throws IOException {
    var refused = new Failure(Status.Code.INVALID_ARGUMENT, "it is damaged", "INVALID_RESUME_TOKEN", Duration.ZERO);
    var told = subscriber("junk", false);
    var error = assertThrows(SubscribeException.class, () -> told.disconnected(refused));
    assertEquals("INVALID_RESUME_TOKEN", error.reason());
    var restarting = subscriber("junk", true);
    Object options = restarting.request().getAllFields().values().iterator().next();
    assertEquals("junk", Fields.named((Message) options, "resume_token"));
    restarting.disconnected(refused);
    assertEquals("", restarting.token());
    assertThrows(SubscribeException.class, () -> restarting.disconnected(refused), "it is no matter of tokens");
  }

  @Test
  void onlyWhatPassesIsTriedAgain() {
    for (Status status : List.of(Status.UNAVAILABLE, Status.CANCELLED)) {
      assertTrue(Failure.of(status, null).passes(), status.toString());
    }
    for (Status status :
        List.of(Status.INVALID_ARGUMENT, Status.INTERNAL, Status.UNAUTHENTICATED, Status.RESOURCE_EXHAUSTED)) {
      assertFalse(Failure.of(status.asRuntimeException()).passes(), status.toString());
    }
    assertFalse(Failure.of(new IllegalStateException("of no gateway")).passes());
  }

  @Test
  void aCredentialThatEndsIsShownAnewOnce() throws IOException {
    var method = Contract.of(parcels()).method(WATCH);
    var subscriber = subscriber(method, "", false);
    var ended = new Failure(Status.Code.UNAUTHENTICATED, "", "NOT_AUTHENTICATED", Duration.ZERO);
    subscriber.request();
    subscriber.receive(Fields.answered(method));
    subscriber.disconnected(ended);
    subscriber.request();
    assertThrows(SubscribeException.class, () -> subscriber.disconnected(ended), "this stream was not admitted");
  }

  @Test
  void aStreamThatIsCutOffIsOpenedAgainOnceItBegan() throws IOException {
    var method = Contract.of(parcels()).method(WATCH);
    for (Status.Code code : List.of(Status.Code.INTERNAL, Status.Code.UNKNOWN)) {
      var subscriber = subscriber(method, "", false);
      var cutOff = new Failure(code, "it was reset", "", Duration.ZERO);
      assertThrows(SubscribeException.class, () -> subscriber.disconnected(cutOff), "it brought nothing");
      subscriber.receive(Fields.answered(method));
      assertEquals(code, subscriber.disconnected(cutOff).code());
      var refused = new Failure(code, "it is broken", "INTERNAL", Duration.ZERO);
      assertThrows(SubscribeException.class, () -> subscriber.disconnected(refused), "it is the gateway's word");
    }
  }

  private static Failure failure(byte[] details) {
    var trailers = new Metadata();
    trailers.put(Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER), details);
    return Failure.of(Status.INVALID_ARGUMENT, trailers);
  }

  @Test
  void detailsOfOthersSayNothing() {
    for (String domain : List.of("tablegate", "proxy.example")) {
      var info = ErrorInfo.newBuilder().setReason("INVALID_FIELD").setDomain(domain).build();
      var pause = com.google.protobuf.Duration.newBuilder().setSeconds(2).setNanos(5_000_000).build();
      var details =
          com.google.rpc.Status.newBuilder()
              .addDetails(Any.pack(info))
              .addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(pause).build()))
              .build();
      Failure failure = failure(details.toByteArray());
      assertEquals(domain.equals("tablegate") ? "INVALID_FIELD" : "", failure.reason);
      assertEquals(Duration.ofMillis(2_005), failure.retryAfter);
    }
    assertEquals("", failure("no message".getBytes(UTF_8)).reason);
  }

  @Test
  void aTokenFileHoldsOneWholeToken(@TempDir Path directory) throws IOException {
    Path file = directory.resolve("token");
    assertEquals("", TokenStore.inFile(file).load());
    for (String token : List.of("1.first, and longer", "1.second")) {
      TokenStore.inFile(file).save(token);
      assertEquals(token, TokenStore.inFile(file).load());
    }
    assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(file)));
    try (var files = Files.list(directory)) {
      assertEquals(List.of(file), files.collect(Collectors.toList()));
    }
  }

  @Test
  void aRecordThatIsNotAcknowledgedIsRefused() {
    var error = assertThrows(IllegalArgumentException.class, () -> SourceRecord.of("a", 0, -1));
    assertNotEquals("", error.getMessage());
  }
}
