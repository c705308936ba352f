package org.example.tablegate;

import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.LongUnaryOperator;

/**
 * The events of a Subscribe, over as many streams as it takes, until it is closed.
 *
 * <pre>{@code
 * try (var events = Subscription.of(connection, method, request, Rating.class).tokens(store).open()) {
 *   for (Event<Rating> event : events) {
 *     ...
 *   }
 * }
 * }</pre>
 *
 * <p>A stream that breaks (UNAVAILABLE, CANCELLED, a lost connection, three heartbeats that did not come) is opened
 * again where it was, after a pause that grows, or the one that the gateway asks for.
 *
 * <p>One thread goes through the events, once; any may close it, which ends them. Going on throws {@link
 * SubscribeException} where the gateway refuses it, {@link UncheckedIOException} of the token store, and a
 * StatusRuntimeException of CANCELLED where the thread is interrupted.
 *
 * @param <Row> the contract's message
 */
public final class Subscription<Row extends Message> implements Iterable<Event<Row>>, AutoCloseable {
  private final Source<?, ?, Row> source;
  private final Queue<Event<Row>> events = new ArrayDeque<>();

  private Subscription(Source<?, ?, Row> source) {
    this.source = source;
  }

  /**
   * Returns settings of a subscription.
   *
   * @param channel a {@link Tablegate}, or what is put around one
   * @param method the Subscribe, as {@code RatingsServiceGrpc.getSubscribeRatingsMethod()} or one of a {@link Contract}
   * @param request the rows that it is for
   * @param rows the class of a row
   */
  public static <Q extends Message, Row extends Message> Builder<Q, Row> of(
      Channel channel, MethodDescriptor<Q, ?> method, Q request, Class<Row> rows) {
    return new Builder<>(channel, method, request, rows);
  }

  /** How a subscription begins. */
  public static final class Builder<Q extends Message, Row extends Message> {
    private final Channel channel;
    private final MethodDescriptor<Q, ?> method;
    private final Q request;
    private final Class<Row> rows;
    private TokenStore tokens = TokenStore.inMemory();
    private boolean restarts;

    private Builder(Channel channel, MethodDescriptor<Q, ?> method, Q request, Class<Row> rows) {
      this.channel = channel;
      this.method = method;
      this.request = request;
      this.rows = rows;
    }

    /**
     * Has the token to continue from, and gets each newer one once the consumer has all events before it, which it
     * shows by asking for the next one. Without it the request's own token counts, if it has one.
     */
    public Builder<Q, Row> tokens(TokenStore store) {
      tokens = store;
      return this;
    }

    /** Lets a token that the gateway refuses begin with a RESET and a new snapshot, instead of ending. */
    public Builder<Q, Row> restart() {
      restarts = true;
      return this;
    }

    /**
     * Returns the subscription; its first stream is opened with the first event.
     *
     * @throws ContractMismatchException {@code method} is no Subscribe, or has other rows
     */
    public Subscription<Row> open() throws IOException {
      return new Subscription<>(source());
    }

    Source<Q, ?, Row> source() throws IOException {
      return source(method);
    }

    private <R> Source<Q, R, Row> source(MethodDescriptor<Q, R> answering) throws IOException {
      LongUnaryOperator random = most -> ThreadLocalRandom.current().nextLong(most);
      var subscriber = new Subscriber<>(request, Fields.answered(answering), rows, tokens.load(), restarts, random);
      return new Source<>(channel, answering, subscriber, tokens);
    }
  }

  /** Goes on with the events: a second one does not begin anew. */
  @Override
  public Iterator<Event<Row>> iterator() {
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        if (source.isClosed()) {
          return false;
        }
        while (events.isEmpty()) {
          List<Event<Row>> next = source.next();
          if (next == null) {
            return false;
          }
          events.addAll(next);
        }
        return true;
      }

      @Override
      public Event<Row> next() {
        if (!hasNext()) {
          throw new NoSuchElementException("the subscription is closed");
        }
        return events.remove();
      }
    };
  }

  /** Ends it: there are no more events. The token of a message of which some were not given is not kept. */
  @Override
  public void close() {
    source.close();
  }

  /** Gives the events of one message after another. One thread asks, any closes. */
  static final class Source<Q extends Message, R, Row extends Message> {
    private static final String CLOSED = "the subscription is closed";

    private final Channel channel;
    private final MethodDescriptor<Q, R> method;
    private final Subscriber<Q, Row> subscriber;
    private final TokenStore tokens;
    private final CountDownLatch closed = new CountDownLatch(1);
    private volatile Stream<R> stream; // null between two
    private Duration pause = Duration.ZERO; // before the next stream
    private boolean hasGiven; // a message, whose token is not saved yet

    private Source(Channel channel, MethodDescriptor<Q, R> method, Subscriber<Q, Row> subscriber, TokenStore tokens) {
      this.channel = channel;
      this.method = method;
      this.subscriber = subscriber;
      this.tokens = tokens;
    }

    /** Returns the events of the next message; null when it is closed. Who asks is done with all before. */
    List<Event<Row>> next() {
      boolean goesOn = false;
      try {
        List<Event<Row>> events = nextMessage();
        goesOn = events != null;
        return events;
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw Status.CANCELLED.withDescription("the thread was interrupted").withCause(error).asRuntimeException();
      } finally {
        if (!goesOn) {
          close();
        }
      }
    }

    private List<Event<Row>> nextMessage() throws IOException, InterruptedException {
      if (isClosed()) {
        return null;
      }
      if (hasGiven) {
        tokens.save(subscriber.token());
        hasGiven = false;
      }
      if (stream == null) {
        if (closed.await(pause.toNanos(), TimeUnit.NANOSECONDS)) {
          return null;
        }
        stream = Stream.start(channel.newCall(method, CallOptions.DEFAULT), subscriber.request());
        if (isClosed()) { // by a thread that has not seen this stream
          stream.cancel(CLOSED);
        }
      }
      Object received = stream.next(subscriber.silence());
      if (isClosed()) {
        return null;
      }
      if (received instanceof Message) {
        hasGiven = true;
        return subscriber.receive((Message) received);
      }
      stream = null;
      Event<Row> disconnected = subscriber.disconnected((Failure) received);
      pause = disconnected.retryAfter();
      return List.of(disconnected);
    }

    private boolean isClosed() {
      return closed.getCount() == 0;
    }

    void close() {
      closed.countDown();
      Stream<R> open = stream;
      if (open != null) {
        open.cancel(CLOSED);
      }
    }
  }

  /** One stream. A message is asked for when the one before is done with, so that a slow consumer holds few of them. */
  private static final class Stream<R> extends ClientCall.Listener<R> {
    private final ClientCall<?, R> call;
    private final BlockingQueue<Object> received = new LinkedBlockingQueue<>(); // a message, a Failure at the end

    private Stream(ClientCall<?, R> call) {
      this.call = call;
    }

    /** Nobody else has the stream before this returns: a call that is cancelled must have been started. */
    static <Q, R> Stream<R> start(ClientCall<Q, R> call, Q request) {
      Stream<R> stream = new Stream<>(call);
      call.start(stream, new Metadata());
      call.sendMessage(request);
      call.halfClose();
      return stream;
    }

    /** Returns the next message, or the Failure that there is instead. Only the time in here counts as silence. */
    Object next(Duration silence) throws InterruptedException {
      call.request(1);
      Object next = received.poll(silence.toNanos(), TimeUnit.NANOSECONDS);
      if (next == null) {
        cancel("it is silent");
        return Failure.broken("no message for " + silence.toMillis() / 1_000.0 + " s");
      }
      return next;
    }

    void cancel(String why) {
      call.cancel(why, null);
    }

    @Override
    public void onMessage(R message) {
      received.add(message);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      received.add(status.isOk() ? Failure.broken("the stream ended") : Failure.of(status, trailers));
    }
  }
}
