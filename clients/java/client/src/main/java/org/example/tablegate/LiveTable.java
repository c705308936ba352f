package org.example.tablegate;

import com.google.protobuf.Message;
import io.grpc.Channel;
import io.grpc.MethodDescriptor;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.time.Instant;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A copy of a table that follows a Subscribe until it is closed. Any thread may use it.
 *
 * <p>Nobody sees half of a snapshot: the first is shown when it is complete, and after a reset the old rows stay until
 * the new ones are.
 *
 * <p>Decision: docs/decisions/0166-the-java-client-is-a-channel.md
 *
 * @param <Row> the contract's message
 */
public final class LiveTable<Row extends Message> implements AutoCloseable {
  /** What a live table does. */
  public enum State {
    /** No complete snapshot has come yet; there are no rows. */
    LOADING,
    /** The stream is up, and the rows were complete as of {@link Status#asOf}. */
    LIVE,
    /** The rows stay as they were as of {@link Status#asOf}; the stream is away, or not caught up. */
    STALE,
    /** The gateway refuses it, and would again; or a listener threw. The rows stay, {@link Status#error} says why. */
    REFUSED,
    /** The rows stay as they were. */
    CLOSED
  }

  private enum Happening {
    CURRENT,
    BEHIND,
    REFUSED,
    CLOSED
  }

  /** What is not here cannot happen. A table that was refused or closed has no stream. */
  private static final Map<State, Map<Happening, State>> TRANSITIONS =
      Map.of(
          State.LOADING, whileFollowing(State.LOADING),
          State.LIVE, whileFollowing(State.STALE),
          State.STALE, whileFollowing(State.STALE),
          State.REFUSED, Map.of(Happening.CLOSED, State.REFUSED),
          State.CLOSED, Map.of(Happening.CLOSED, State.CLOSED));

  private static final Map<Event.Kind, Happening> HAPPENINGS =
      new EnumMap<>(
          Map.of(
              Event.Kind.RESET, Happening.BEHIND,
              Event.Kind.CATCHING_UP, Happening.BEHIND,
              Event.Kind.DISCONNECTED, Happening.BEHIND,
              Event.Kind.CURRENT, Happening.CURRENT));

  private static Map<Happening, State> whileFollowing(State behind) {
    return Map.of(
        Happening.CURRENT, State.LIVE,
        Happening.BEHIND, behind,
        Happening.REFUSED, State.REFUSED,
        Happening.CLOSED, State.CLOSED);
  }

  /** How a table is at one moment. */
  public static final class Status {
    private final State state;
    private final Instant asOf;
    private final String consistencyToken;
    private final String trouble;
    private final RuntimeException error;

    private Status(State state, Instant asOf, String consistencyToken, String trouble, RuntimeException error) {
      this.state = state;
      this.asOf = asOf;
      this.consistencyToken = consistencyToken;
      this.trouble = trouble;
      this.error = error;
    }

    /** Returns what the table does. */
    public State state() {
      return state;
    }

    /** Nothing is missing that was in the changelog before this; nothing before the first complete snapshot. */
    public Optional<Instant> asOf() {
      return Optional.ofNullable(asOf);
    }

    /** Makes another read at least as fresh, see {@link Reads#atLeast}; "" before the first complete snapshot. */
    public String consistencyToken() {
      return consistencyToken;
    }

    /** Why it is not live, in words; "" where it is. */
    public String trouble() {
      return trouble;
    }

    /** What ended it, where something did: a {@link SubscribeException}, or what a listener threw. */
    public Optional<RuntimeException> error() {
      return Optional.ofNullable(error);
    }

    private Status in(State next) {
      return new Status(next, asOf, consistencyToken, trouble, error);
    }

    private Status because(String why, RuntimeException ended) {
      return new Status(state, asOf, consistencyToken, why, ended);
    }
  }

  /**
   * Hears of a table, in one thread, in order; the table goes on when a method returns, and ends with what one throws.
   * Each is given the table, as it may be called before {@link LiveTable#open} has returned it. It may close the table.
   */
  @FunctionalInterface
  public interface Listener<Row extends Message> {
    /** A row is another one, or gone; the table has it so by then. */
    void onChange(LiveTable<Row> table, Change<Row> change);

    /** All of a message was applied, or the table has ended: its status may be another one. */
    default void onStatus(LiveTable<Row> table) {}
  }

  private final Subscription.Source<?, ?, Row> source;
  private final Listener<Row> listener; // null for none
  private final CompletableFuture<Void> ended = new CompletableFuture<>();
  private final Object lock = new Object(); // for whoever alters rows or status, and whoever waits
  private final Rows<Row> rows = new Rows<>();
  private volatile Status status = new Status(State.LOADING, null, "", "", null);

  private LiveTable(Subscription.Source<?, ?, Row> source, Listener<Row> listener) {
    this.source = source;
    this.listener = listener;
  }

  /** Opens a table that nobody listens to; see the other. */
  public static <Q extends Message, Row extends Message> LiveTable<Row> open(
      Channel channel, MethodDescriptor<Q, ?> method, Q request, Class<Row> rows) {
    return open(channel, method, request, rows, null);
  }

  /**
   * Opens a table, which follows from now on, in a thread of its own that keeps no program from its end.
   *
   * @param channel a {@link Tablegate}, or what is put around one
   * @param method the Subscribe, as {@code RatingsServiceGrpc.getSubscribeRatingsMethod()} or one of a {@link Contract}
   * @param request the rows that it is for
   * @param rows the class of a row
   * @throws ContractMismatchException {@code method} is no Subscribe, or has other rows
   */
  public static <Q extends Message, Row extends Message> LiveTable<Row> open(
      Channel channel, MethodDescriptor<Q, ?> method, Q request, Class<Row> rows, Listener<Row> listener) {
    LiveTable<Row> table;
    try {
      // Its rows are here alone: a token that is refused costs a snapshot, and nothing that nobody could tell.
      table = new LiveTable<>(Subscription.of(channel, method, request, rows).restart().source(), listener);
    } catch (IOException error) { // of a store that has no file
      throw new UncheckedIOException(error);
    }
    Thread thread = new Thread(table::run, "tablegate " + method.getFullMethodName());
    thread.setDaemon(true);
    thread.start();
    return table;
  }

  /** Returns the row of a key: the values of its columns, in the order of the table's key, as in {@link Key#of}. */
  public Optional<Row> get(Object... key) {
    return get(Key.of(key));
  }

  /** Returns the row of a key. */
  public Optional<Row> get(Key key) {
    return Optional.ofNullable(rows.shown().get(key));
  }

  /** Returns how many rows there are. */
  public int size() {
    return rows.shown().size();
  }

  /** Returns the rows of this moment, which stay as they are, in no order that is promised. */
  public Map<Key, Row> rows() {
    synchronized (lock) {
      return rows.share();
    }
  }

  /** Returns how the table is. */
  public Status status() {
    return status;
  }

  /**
   * Waits until the table is live. Throws what ended it, or IllegalStateException where that was {@link #close}.
   *
   * @throws TimeoutException it was not for that long; the message says why
   */
  public void waitLive(Duration most) throws InterruptedException, TimeoutException {
    long end = System.nanoTime() + most.toNanos();
    synchronized (lock) {
      while (true) {
        Status now = status;
        switch (now.state) {
          case LIVE:
            return;
          case REFUSED:
            throw now.error;
          case CLOSED:
            throw new IllegalStateException("the live table is closed");
          default:
        }
        long leftNs = end - System.nanoTime();
        if (leftNs <= 0) {
          throw new TimeoutException("the table is not live" + (now.trouble.isEmpty() ? "" : ": " + now.trouble));
        }
        TimeUnit.NANOSECONDS.timedWait(lock, leftNs);
      }
    }
  }

  /** Ends it; the rows stay as they were. It does not wait, so a listener may call it. */
  @Override
  public void close() {
    end(Happening.CLOSED, null);
    source.close();
  }

  /** Returns what is done once the table has ended: then the listener hears nothing any more. */
  public CompletableFuture<Void> ended() {
    return ended.copy();
  }

  private void run() {
    try {
      try {
        for (List<Event<Row>> events = source.next(); events != null && follow(events); ) {
          events = source.next();
        }
        end(Happening.CLOSED, null);
      } catch (RuntimeException error) {
        source.close();
        end(Happening.REFUSED, error);
      } catch (Error fatal) { // of a listener: the thread ends with it, and the table shows it
        source.close();
        end(Happening.REFUSED, new IllegalStateException(fatal.toString(), fatal));
        throw fatal;
      }
      if (listener != null) {
        listener.onStatus(this);
      }
    } finally {
      ended.complete(null);
    }
  }

  /** Applies the events of a message; false once the table is closed. */
  private boolean follow(List<Event<Row>> events) {
    for (Event<Row> event : events) {
      List<Change<Row>> changes = apply(event);
      if (listener == null) {
        continue;
      }
      for (Change<Row> change : changes) {
        if (isClosed()) {
          return false;
        }
        listener.onChange(this, change);
      }
    }
    synchronized (lock) {
      lock.notifyAll();
    }
    if (isClosed()) {
      return false;
    }
    if (listener != null) {
      listener.onStatus(this);
    }
    return true;
  }

  private boolean isClosed() {
    return status.state == State.CLOSED;
  }

  private List<Change<Row>> apply(Event<Row> event) {
    synchronized (lock) {
      if (isClosed()) {
        return List.of();
      }
      List<Change<Row>> changes = rows.apply(event);
      if (event.kind() == Event.Kind.CURRENT) {
        status = new Status(status.state, event.asOf(), event.consistencyToken(), "", null);
      } else if (event.kind() == Event.Kind.DISCONNECTED) {
        status = status.because(event.code() + ": " + event.text(), null);
      }
      move(HAPPENINGS.get(event.kind()));
      return changes;
    }
  }

  private void end(Happening how, RuntimeException error) {
    synchronized (lock) {
      if (isClosed()) {
        return; // by close, while the stream was ending by itself
      }
      move(how);
      if (error != null) {
        status = status.because(String.valueOf(error.getMessage()), error);
      }
      lock.notifyAll();
    }
  }

  /** For who has the lock. A change moves nothing. */
  private void move(Happening how) {
    if (how == null) {
      return;
    }
    State next = TRANSITIONS.get(status.state).get(how);
    if (next == null) {
      throw new IllegalStateException("a table that is " + status.state + " cannot have " + how);
    }
    status = status.in(next);
  }
}
