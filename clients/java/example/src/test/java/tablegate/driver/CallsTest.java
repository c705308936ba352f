package tablegate.driver;

import static java.util.concurrent.TimeUnit.HOURS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.example.examples.ratings.v1.GetRatingRequest;
import com.example.examples.ratings.v1.GetRatingResponse;
import com.example.examples.ratings.v1.Rating;
import com.example.examples.ratings.v1.RatingChange;
import com.example.examples.ratings.v1.RatingKey;
import com.example.examples.ratings.v1.RatingsServiceGrpc;
import com.example.examples.ratings.v1.SubscribeRatingsRequest;
import com.example.examples.ratings.v1.SubscribeRatingsResponse;
import com.example.tablegate.v1.SubscribePhase;
import com.example.tablegate.v1.SubscribeProgress;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.example.tablegate.ContractMismatchException;
import org.example.tablegate.Credential;
import org.example.tablegate.Event;
import org.example.tablegate.LiveTable;
import org.example.tablegate.Reads;
import org.example.tablegate.SourceRecord;
import org.example.tablegate.Subscription;
import org.example.tablegate.Tablegate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What of the client needs no gateway, but a server. */
@Timeout(60)
final class CallsTest {
  private static final SubscribeRatingsRequest ALL = SubscribeRatingsRequest.getDefaultInstance();
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Service service = new Service();
  private Server server;
  private Tablegate connection;

  /** Notes what calls bring; its streams have rows 7 and 8, then 9. */
  private static final class Service extends RatingsServiceGrpc.RatingsServiceImplBase implements ServerInterceptor {
    final BlockingQueue<Long> leftS = new LinkedBlockingQueue<>();
    final BlockingQueue<List<String>> shown = new LinkedBlockingQueue<>();
    final CountDownLatch cancelled = new CountDownLatch(1);
    volatile Status ends; // what streams end with, after the rows

    @Override
    public <Q, R> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
      var all = headers.getAll(AUTHORIZATION);
      var texts = new ArrayList<String>();
      if (all != null) {
        all.forEach(texts::add);
      }
      shown.add(texts);
      return Contexts.interceptCall(Context.current(), call, headers, next);
    }

    @Override
    public void getRating(GetRatingRequest request, StreamObserver<GetRatingResponse> observer) {
      leftS.add(Context.current().getDeadline().timeRemaining(SECONDS));
      observer.onNext(GetRatingResponse.getDefaultInstance());
      observer.onCompleted();
    }

    @Override
    public void subscribeRatings(
        SubscribeRatingsRequest request, StreamObserver<SubscribeRatingsResponse> observer) {
      ((ServerCallStreamObserver<SubscribeRatingsResponse>) observer).setOnCancelHandler(cancelled::countDown);
      var phase =
          request.getSubscribeOptions().getResumeToken().isEmpty()
              ? SubscribePhase.SUBSCRIBE_PHASE_RESET
              : SubscribePhase.SUBSCRIBE_PHASE_CURRENT;
      for (long movie = 7; movie <= 9; movie++) {
        var row = Rating.newBuilder().setMovieId(movie).build();
        observer.onNext(
            SubscribeRatingsResponse.newBuilder()
                .addChanges(RatingChange.newBuilder().setUpsert(row))
                .setProgress(SubscribeProgress.newBuilder().setPhase(phase).setResumeToken("1.token"))
                .build());
        phase = SubscribePhase.SUBSCRIBE_PHASE_CURRENT;
      }
      if (ends != null) {
        observer.onError(ends.asException());
      }
    }
  }

  @BeforeEach
  void serve() throws IOException {
    server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(io.grpc.ServerInterceptors.intercept(service, service))
            .build()
            .start();
    connection = Tablegate.connect(address());
  }

  @AfterEach
  void end() {
    connection.close();
    server.shutdownNow();
  }

  private String address() {
    return "127.0.0.1:" + server.getPort();
  }

  private LiveTable<Rating> open(LiveTable.Listener<Rating> listener) {
    return LiveTable.open(connection, RatingsServiceGrpc.getSubscribeRatingsMethod(), ALL, Rating.class, listener);
  }

  @Test
  void aUnaryCallHasADeadlineItsOwnWhereItHasOne() throws Exception {
    var stub = RatingsServiceGrpc.newBlockingStub(connection);
    stub.getRating(GetRatingRequest.getDefaultInstance());
    assertTrue(service.leftS.take() <= 5);
    stub.withDeadlineAfter(1, HOURS).getRating(GetRatingRequest.getDefaultInstance());
    assertTrue(service.leftS.take() > 5);
    connection.call(RatingsServiceGrpc.getGetRatingMethod(), GetRatingRequest.getDefaultInstance());
    assertTrue(service.leftS.take() <= 5);
  }

  @Test
  void eachStreamShowsTheCredentialThatIsGoodThen() throws Exception {
    service.ends = Status.UNAUTHENTICATED.withDescription("it has ended");
    var asked = new AtomicInteger();
    Credential credential =
        () -> {
          switch (asked.incrementAndGet()) {
            case 1:
              throw Status.UNAVAILABLE.withDescription("its issuer is away").asRuntimeException();
            case 2:
              return "first";
            default:
              return "second";
          }
        };
    int disconnected = 0;
    try (var shows = Tablegate.to(address()).credential(credential).connect();
        var events =
            Subscription.of(shows, RatingsServiceGrpc.getSubscribeRatingsMethod(), ALL, Rating.class).open()) {
      for (Event<Rating> event : events) {
        if (event.code() == Status.Code.UNAUTHENTICATED) {
          disconnected++;
        }
        if (event.kind() == Event.Kind.CURRENT && disconnected == 1) {
          break;
        }
      }
    }
    assertEquals(List.of("Bearer first"), service.shown.take());
    assertEquals(List.of("Bearer second"), service.shown.take());
  }

  @Test
  void aCredentialThatCannotBeHadEndsTheCall() throws Exception {
    Credential credential = () -> {
      throw new IOException("no such file");
    };
    try (var shows = Tablegate.to(address()).credential(credential).connect()) {
      var stub = RatingsServiceGrpc.newBlockingStub(shows);
      var error =
          assertThrows(StatusRuntimeException.class, () -> stub.getRating(GetRatingRequest.getDefaultInstance()));
      assertEquals(Status.Code.UNAUTHENTICATED, error.getStatus().getCode());
      assertTrue(error.getMessage().contains("no such file"), error.getMessage());
    }
    assertTrue(service.shown.isEmpty());
  }

  @Test
  void aConnectionThatFailsIsTriedAgainSoon() throws Exception {
    try (var gateway = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        var connection =
            Tablegate.to("127.0.0.1:" + gateway.getLocalPort()).reconnectMax(Duration.ofMillis(50)).connect()) {
      RatingsServiceGrpc.newFutureStub(connection).getRating(GetRatingRequest.getDefaultInstance());
      for (int attempt = 0; attempt < 12; attempt++) { // which take gRPC alone some minutes
        gateway.accept().close();
      }
    }
  }

  @Test
  void aListenerMayCloseTheTable() throws Exception {
    for (var closed : Map.of(1, 2, 3, 3).entrySet()) { // within the snapshot of two rows; within a message after it
      var heard = new AtomicInteger();
      LiveTable<Rating> table =
          open(
              (opened, change) -> {
                if (heard.incrementAndGet() == closed.getKey()) {
                  opened.close();
                }
              });
      table.ended().get();
      service.cancelled.await();
      assertEquals(closed.getKey(), heard.get());
      assertEquals(8, table.get(8).orElseThrow().getMovieId());
      assertEquals(closed.getValue(), table.size(), "its rows stay");
      assertThrows(IllegalStateException.class, () -> table.waitLive(Duration.ofMinutes(1)));
    }
  }

  @Test
  void whatAListenerThrowsEndsTheTable() throws Exception {
    var states = new LinkedBlockingQueue<LiveTable.State>();
    LiveTable<Rating> table =
        open(
            new LiveTable.Listener<>() {
              @Override
              public void onChange(LiveTable<Rating> opened, org.example.tablegate.Change<Rating> change) {
                if (change.key().values().contains(9L)) {
                  throw new IllegalArgumentException("9 is too much");
                }
              }

              @Override
              public void onStatus(LiveTable<Rating> opened) {
                states.add(opened.status().state());
              }
            });
    table.ended().get();
    service.cancelled.await();
    assertEquals(LiveTable.State.REFUSED, table.status().state());
    assertEquals("9 is too much", table.status().trouble());
    var error = assertThrows(IllegalArgumentException.class, () -> table.waitLive(Duration.ofMinutes(1)));
    assertEquals("9 is too much", error.getMessage());
    assertEquals(
        List.of(LiveTable.State.LOADING, LiveTable.State.LIVE, LiveTable.State.REFUSED), new ArrayList<>(states));
    table.close();
    assertEquals(LiveTable.State.REFUSED, table.status().state());
  }

  @Test
  void aTableEndsWithItsClose() throws Exception {
    LiveTable<Rating> table = open(null);
    table.waitLive(Duration.ofMinutes(1));
    table.close();
    table.ended().get();
    service.cancelled.await();
    assertEquals(LiveTable.State.CLOSED, table.status().state());
  }

  @Test
  void aTableThatIsNotLiveSaysWhyInTime() throws Exception {
    server.shutdownNow().awaitTermination();
    var hasHeard = new CompletableFuture<Void>();
    LiveTable<Rating> table =
        open(
            new LiveTable.Listener<>() {
              @Override
              public void onChange(LiveTable<Rating> opened, org.example.tablegate.Change<Rating> change) {}

              @Override
              public void onStatus(LiveTable<Rating> opened) {
                hasHeard.complete(null);
              }
            });
    hasHeard.get();
    var error = assertThrows(java.util.concurrent.TimeoutException.class, () -> table.waitLive(Duration.ZERO));
    assertTrue(error.getMessage().contains("UNAVAILABLE"), error.getMessage());
    table.close();
  }

  @Test
  void anInterruptEndsASubscription() throws Exception {
    var found = new AtomicReference<Throwable>();
    var thread =
        new Thread(
            () -> {
              try (var events =
                  Subscription.of(connection, RatingsServiceGrpc.getSubscribeRatingsMethod(), ALL, Rating.class)
                      .open()) {
                for (Event<Rating> event : events) {
                  if (event.kind() == Event.Kind.UPSERT && event.row().getMovieId() == 9) {
                    Thread.currentThread().interrupt();
                  }
                }
              } catch (IOException | RuntimeException error) {
                found.set(error);
              }
            });
    thread.start();
    thread.join();
    service.cancelled.await();
    var error = (StatusRuntimeException) found.get();
    assertEquals(Status.Code.CANCELLED, error.getStatus().getCode());
  }

  @Test
  void aTableOfOtherRowsIsRefused() {
    var method = RatingsServiceGrpc.getSubscribeRatingsMethod();
    assertThrows(
        ContractMismatchException.class, () -> LiveTable.open(connection, method, ALL, RatingKey.class));
    var get = RatingsServiceGrpc.getGetRatingMethod();
    var request = GetRatingRequest.getDefaultInstance();
    assertThrows(ContractMismatchException.class, () -> LiveTable.open(connection, get, request, Rating.class));
  }

  @Test
  void aRequestAsksForWhatWasWritten() {
    var request = GetRatingRequest.newBuilder().setMovieId(7).build();
    var asked = Reads.atLeastSource(request, SourceRecord.of("a", 0, 5), SourceRecord.of("b", 1, 0));
    asked = Reads.atLeastSource(asked, SourceRecord.of("a", 0, 3), SourceRecord.of("a", 2, 4));
    var topics = asked.getReadOptions().getAtLeastSource().getTopicsList();
    assertEquals(2, topics.size());
    assertEquals(Map.of(0, 5L, 2, 4L), topics.get(0).getOffsetsMap());
    assertEquals(Map.of(1, 0L), topics.get(1).getOffsetsMap());
    assertEquals(7, asked.getMovieId());
    assertFalse(request.hasReadOptions(), "the request that was given is left as it was");
    assertEquals("1.token", Reads.atLeast(asked, "1.token").getReadOptions().getAtLeast());
    assertThrows(ContractMismatchException.class, () -> Reads.atLeast(ALL, "1.token"));
  }
}
