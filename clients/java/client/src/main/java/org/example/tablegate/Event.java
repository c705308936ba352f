package org.example.tablegate;

import com.google.protobuf.Message;
import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;

/**
 * An event of a subscription.
 *
 * <p>A message of the gateway becomes its changes (UPSERT, DELETE) and one of RESET, CATCHING_UP and CURRENT, whose
 * token says exactly where a copy is that has all events up to there.
 *
 * @param <Row> the contract's message
 */
public final class Event<Row extends Message> {
  /** What an event says. */
  public enum Kind {
    /** Drop every row: a new snapshot begins. */
    RESET,
    /** The row of the key is now this. */
    UPSERT,
    /** The row of the key is gone, or no longer matches the request. */
    DELETE,
    /** The rows so far are not the complete table. */
    CATCHING_UP,
    /** The rows are the table as of {@link Event#asOf}; comes also as a heartbeat. */
    CURRENT,
    /** The stream broke; it goes on where it was after {@link Event#retryAfter}. */
    DISCONNECTED
  }

  private final Kind kind;
  private final Key key;
  private final Row row;
  private final Instant asOf;
  private final String consistencyToken;
  private final String token;
  private final Failure failure;

  private Event(
      Kind kind, Key key, Row row, Instant asOf, String consistencyToken, String token, Failure failure) {
    this.kind = kind;
    this.key = key;
    this.row = row;
    this.asOf = asOf;
    this.consistencyToken = consistencyToken;
    this.token = token;
    this.failure = failure;
  }

  static <Row extends Message> Event<Row> change(Key key, Row row) {
    return new Event<>(row == null ? Kind.DELETE : Kind.UPSERT, key, row, null, "", "", null);
  }

  static <Row extends Message> Event<Row> progress(Kind kind, String token) {
    return new Event<>(kind, null, null, null, "", token, null);
  }

  static <Row extends Message> Event<Row> current(Instant asOf, String consistencyToken, String token) {
    return new Event<>(Kind.CURRENT, null, null, asOf, consistencyToken, token, null);
  }

  static <Row extends Message> Event<Row> disconnected(Failure failure) {
    return new Event<>(Kind.DISCONNECTED, null, null, null, "", "", failure);
  }

  /** Returns what it says. */
  public Kind kind() {
    return kind;
  }

  /** Of UPSERT and DELETE; else null. */
  public Key key() {
    return key;
  }

  /** Of UPSERT; else null. */
  public Row row() {
    return row;
  }

  /** Of CURRENT: nothing is missing that was in the changelog before. Else null. */
  public Instant asOf() {
    return asOf;
  }

  /** Of CURRENT: makes another read at least as fresh, see {@link Reads#atLeast}. Else "". */
  public String consistencyToken() {
    return consistencyToken;
  }

  /** Of RESET, CATCHING_UP and CURRENT; else "". */
  public String token() {
    return token;
  }

  /** Of DISCONNECTED: the status; else OK. */
  public Status.Code code() {
    return failure == null ? Status.Code.OK : failure.code;
  }

  /** Of DISCONNECTED: the gateway's reason, "" where it gave none. */
  public String reason() {
    return failure == null ? "" : failure.reason;
  }

  /** Of DISCONNECTED: why, in words; else "". */
  public String text() {
    return failure == null ? "" : failure.text;
  }

  /** Of DISCONNECTED: for how long it waits; else zero. */
  public Duration retryAfter() {
    return failure == null ? Duration.ZERO : failure.retryAfter;
  }

  @Override
  public String toString() {
    switch (kind) {
      case UPSERT:
      case DELETE:
        return kind + " " + key;
      case DISCONNECTED:
        return kind + " " + failure.code + ": " + failure.text;
      default:
        return kind.toString();
    }
  }
}
