package org.example.tablegate;

import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.UnaryOperator;

/**
 * A connection to a gateway, with the settings that go with one. It is a channel: generated stubs are made of it. Any
 * thread may use it.
 *
 * <pre>{@code
 * try (Tablegate connection = Tablegate.connect("127.0.0.1:50051")) {
 *   var stub = RatingsServiceGrpc.newBlockingStub(connection);
 * }
 * }</pre>
 *
 * <p>A unary call that UNAVAILABLE ends is tried again, up to four times in all, when the gateway says so; one that is
 * given no deadline has 5 s. Streams have no deadline.
 */
public final class Tablegate extends Channel implements AutoCloseable {
  /**
   * The retry policy that goes with a gateway, for {@link ManagedChannelBuilder#defaultServiceConfig}: of its statuses
   * it means UNAVAILABLE alone to be tried again. gRPC itself heeds the pause that the gateway asks for.
   */
  public static final Map<String, ?> SERVICE_CONFIG =
      Map.of(
          "methodConfig",
          List.of(
              Map.of(
                  "name",
                  List.of(Map.of()),
                  "retryPolicy",
                  Map.of(
                      "maxAttempts", 4.0,
                      "initialBackoff", "0.1s",
                      "maxBackoff", "2s",
                      "backoffMultiplier", 2.0,
                      "retryableStatusCodes", List.of("UNAVAILABLE")))));

  private static final long DEADLINE_S = 5; // the gateway waits for freshness up to half of it
  private static final int RESPONSE_BYTES_MAX = 64 * 1024 * 1024; // a page has up to 1,000 rows; gRPC's own is 4 MiB
  private static final long KEEPALIVE_S = 30; // a gateway allows one ping every 20 s
  private static final long KEEPALIVE_TIMEOUT_S = 10;
  private static final Duration RECONNECT_MAX = Duration.ofSeconds(2); // gRPC's own pauses grow to two minutes

  private final ManagedChannel channel;
  private final Credential credential; // null for none
  private final Duration reconnectMax;

  private Tablegate(ManagedChannel channel, Credential credential, Duration reconnectMax) {
    this.channel = channel;
    this.credential = credential;
    this.reconnectMax = reconnectMax;
    watch();
  }

  /** Returns a connection in plaintext to the gateway at {@code target}: host:port, or what gRPC's resolvers know. */
  public static Tablegate connect(String target) {
    return to(target).connect();
  }

  /** Returns settings of a connection to {@code target}. */
  public static Builder to(String target) {
    return new Builder(target);
  }

  /** Settings of a connection. */
  public static final class Builder {
    private final String target;
    private ChannelCredentials channelCredentials = InsecureChannelCredentials.create();
    private Credential credential;
    private Duration reconnectMax = RECONNECT_MAX;
    private UnaryOperator<ManagedChannelBuilder<?>> more = UnaryOperator.identity();

    private Builder(String target) {
      this.target = target;
    }

    /** Sets how the connection is made; {@code TlsChannelCredentials.create()} makes it TLS. Without, plaintext. */
    public Builder channelCredentials(ChannelCredentials credentials) {
      channelCredentials = credentials;
      return this;
    }

    /** Sets what is shown with each call that has no CallCredentials of its own: over TLS, or others read it. */
    public Builder credential(Credential shown) {
      credential = shown;
      return this;
    }

    /** Sets the longest pause before it connects again where that has failed; 2 s. */
    public Builder reconnectMax(Duration pause) {
      reconnectMax = pause;
      return this;
    }

    /** Sets more of gRPC's channel; what it sets wins. */
    public Builder channel(UnaryOperator<ManagedChannelBuilder<?>> settings) {
      more = settings;
      return this;
    }

    /** Returns the connection, which is made with the first call. */
    public Tablegate connect() {
      ManagedChannelBuilder<?> builder =
          Grpc.newChannelBuilder(target, channelCredentials)
              .defaultServiceConfig(SERVICE_CONFIG)
              .enableRetry()
              .maxInboundMessageSize(RESPONSE_BYTES_MAX)
              .keepAliveTime(KEEPALIVE_S, SECONDS)
              .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, SECONDS);
      return new Tablegate(more.apply(builder).build(), credential, reconnectMax);
    }
  }

  /** Asks a method for one response: a Get, a BatchGet, a page of a Range, a Count. */
  public <Q, R> R call(MethodDescriptor<Q, R> method, Q request) throws StatusRuntimeException {
    return ClientCalls.blockingUnaryCall(this, method, CallOptions.DEFAULT, request);
  }

  /** Asks a method for several responses, a Scan. Leaving them before the end ends no call; {@link #close} does. */
  public <Q, R> Iterator<R> stream(MethodDescriptor<Q, R> method, Q request) {
    return ClientCalls.blockingServerStreamingCall(this, method, CallOptions.DEFAULT, request);
  }

  @Override
  public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> method, CallOptions options) {
    boolean isUnary = method.getType() == MethodDescriptor.MethodType.UNARY;
    // A service config cannot give it: it knows no unary methods from streams.
    if (isUnary && options.getDeadline() == null && Context.current().getDeadline() == null) {
      options = options.withDeadlineAfter(DEADLINE_S, SECONDS);
    }
    if (credential != null && options.getCredentials() == null) {
      options = options.withCallCredentials(new ShownCredential(credential));
    }
    return channel.newCall(method, options);
  }

  @Override
  public String authority() {
    return channel.authority();
  }

  /** Ends all calls. */
  @Override
  public void close() {
    channel.shutdownNow();
  }

  /** Lets the channel connect again soon, as gRPC's own pauses cannot be set: whenever a connection fails. */
  private void watch() {
    ConnectivityState state = channel.getState(false);
    if (state == ConnectivityState.SHUTDOWN) {
      return;
    }
    if (state == ConnectivityState.TRANSIENT_FAILURE) {
      reconnectLater();
    }
    channel.notifyWhenStateChanged(state, this::watch);
  }

  private void reconnectLater() {
    Executor later = CompletableFuture.delayedExecutor(reconnectMax.toNanos(), NANOSECONDS, Runnable::run);
    later.execute(
        () -> {
          if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            channel.resetConnectBackoff();
            reconnectLater(); // it stays in this state until a connection is made
          }
        });
  }
}
