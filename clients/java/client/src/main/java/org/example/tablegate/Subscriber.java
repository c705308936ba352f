package org.example.tablegate;

import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongUnaryOperator;

/**
 * The rules: what a subscription asks, what a response means, and what a broken stream leads to. No I/O, no clock. They
 * are those of the Python client, and the same scenarios (clients/scenarios.txt) hold both to them.
 *
 * <p>Decision: docs/decisions/0020-client-rules-without-io.md
 */
final class Subscriber<Q extends Message, Row extends Message> {
  private static final Duration PROGRESS = Duration.ofSeconds(5); // how often it comes, unless the request sets it
  private static final Duration PROGRESS_MIN = Duration.ofMillis(100); // the bounds that a gateway has for it
  private static final Duration PROGRESS_MAX = Duration.ofSeconds(60);
  private static final int MISSED_MAX = 3; // heartbeats
  private static final Duration SILENCE_MIN = Duration.ofSeconds(2); // a busy machine may pause that long
  private static final Duration BACKOFF_MIN = Duration.ofMillis(100);
  private static final Duration BACKOFF_MAX = Duration.ofSeconds(5); // a gateway with too many streams asks for more
  private static final int DOUBLINGS_MAX = 16; // far beyond the largest pause
  private static final int PHASE_RESET = 1;
  private static final int PHASE_CATCHING_UP = 2;
  private static final int PHASE_CURRENT = 3;

  private final Class<Row> rows;
  private final boolean restarts; // a refused token begins anew instead of ending
  private final LongUnaryOperator random; // nanoseconds from 0 to the most that it is given
  private final Fields.Response fields;
  private final FieldDescriptor options; // of the request
  private Q asked;
  private String token; // where the consumer's copy is, "" for nowhere
  private int failures;
  private boolean isAdmitted; // whether the stream has brought anything

  Subscriber(
      Q request, Message response, Class<Row> rows, String token, boolean restarts, LongUnaryOperator random) {
    this.rows = rows;
    this.restarts = restarts;
    this.random = random;
    this.fields = Fields.response(response.getDescriptorForType());
    this.options = Fields.ofType(request.getDescriptorForType(), Fields.SUBSCRIBE_OPTIONS);
    this.asked = request;
    this.token = token.isEmpty() ? (String) Fields.named(options(), "resume_token") : token;
    Message change = response.newBuilderForType().newBuilderForField(fields.changes).getDefaultInstanceForType();
    Message row = change.newBuilderForType().newBuilderForField(fields.row).getDefaultInstanceForType();
    if (!rows.isInstance(row)) {
      Descriptor answered = response.getDescriptorForType();
      throw new ContractMismatchException(
          answered.getFullName() + " has rows of " + row.getClass().getName() + ", not of " + rows.getName());
    }
  }

  /** Returns the token of a consumer that has all events so far. */
  String token() {
    return token;
  }

  private Message options() {
    return (Message) asked.getField(options);
  }

  /** Returns how long without a message a stream is alive. */
  Duration silence() {
    FieldDescriptor field = Fields.field(options(), "progress_interval");
    Duration interval =
        options().hasField(field) ? Fields.duration((Message) options().getField(field)) : PROGRESS;
    Duration bounded = min(max(interval, PROGRESS_MIN), PROGRESS_MAX);
    return max(SILENCE_MIN, bounded.multipliedBy(MISSED_MAX));
  }

  /** Returns the request of the next stream. */
  Q request() {
    setOption("resume_token", token);
    isAdmitted = false;
    return asked;
  }

  @SuppressWarnings("unchecked") // a builder makes messages of the type that it comes from
  private void setOption(String name, Object value) {
    Message.Builder made = options().toBuilder();
    FieldDescriptor field = Fields.field(options(), name);
    made = value == null ? made.clearField(field) : made.setField(field, value);
    asked = (Q) asked.toBuilder().setField(options, made.build()).build();
  }

  /** Returns the events of a response; {@link #token} is then that of a consumer which has all of them. */
  List<Event<Row>> receive(Message response) {
    isAdmitted = true;
    Message progress = (Message) response.getField(fields.progress);
    String newest = (String) Fields.named(progress, "resume_token");
    if (!newest.isEmpty()) {
      token = newest;
    }
    int phase = ((EnumValueDescriptor) Fields.named(progress, "phase")).getNumber();
    int count = response.getRepeatedFieldCount(fields.changes);
    List<Event<Row>> events = new ArrayList<>(count + 1);
    if (phase == PHASE_RESET) {
      events.add(Event.progress(Event.Kind.RESET, token));
    }
    for (int i = 0; i < count; i++) {
      Event<Row> event = fields.event((Message) response.getRepeatedField(fields.changes, i), rows);
      if (event != null) {
        events.add(event);
      }
    }
    if (phase == PHASE_CATCHING_UP) {
      events.add(Event.progress(Event.Kind.CATCHING_UP, token));
    } else if (phase == PHASE_CURRENT) {
      Message info = (Message) Fields.named(progress, "read_info");
      events.add(
          Event.current(
              Fields.time((Message) Fields.named(info, "as_of_time")),
              (String) Fields.named(info, "consistency_token"),
              token));
    }
    if (phase != PHASE_RESET) {
      failures = 0; // the stream brought the copy forward
    }
    return events;
  }

  /** Returns the event of a stream that ended, with the wait before the next; throws SubscribeException. */
  Event<Row> disconnected(Failure why) {
    if (why.reason.equals("INVALID_RESUME_TOKEN")) {
      if (!restarts || token.isEmpty()) {
        throw new SubscribeException(why, "; drop your copy and the stored token, or subscribe with restart()");
      }
      token = "";
      setOption("start", null); // what was missed comes with a snapshot only
    } else if (!why.passes() && !(isAdmitted && why.passesOnceAdmitted())) {
      throw new SubscribeException(why, "");
    }
    Duration most = min(BACKOFF_MAX, BACKOFF_MIN.multipliedBy(1L << Math.min(failures, DOUBLINGS_MAX)));
    failures++;
    Duration pause = why.retryAfter.plusNanos(random.applyAsLong(most.toNanos()));
    return Event.disconnected(new Failure(why.code, why.text, why.reason, pause));
  }

  private static Duration min(Duration one, Duration other) {
    return one.compareTo(other) < 0 ? one : other;
  }

  private static Duration max(Duration one, Duration other) {
    return one.compareTo(other) > 0 ? one : other;
  }
}
