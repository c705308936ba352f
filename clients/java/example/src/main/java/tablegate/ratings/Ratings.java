package tablegate.ratings;

import static java.nio.file.StandardCopyOption.REPLACE_EXISTING;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.example.examples.ratings.v1.GetRatingRequest;
import com.example.examples.ratings.v1.GetRatingResponse;
import com.example.examples.ratings.v1.RatingChange;
import com.example.examples.ratings.v1.RatingsServiceGrpc.RatingsServiceBlockingStub;
import com.example.examples.ratings.v1.RatingsServiceGrpc;
import com.example.examples.ratings.v1.SubscribeRatingsRequest;
import com.example.examples.ratings.v1.SubscribeRatingsResponse;
import com.example.tablegate.v1.SubscribeOptions;
import com.example.tablegate.v1.SubscribePhase;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;

/** Asks a gateway for one movie and then follows all of them. Each line it writes is a JSON object. */
public final class Ratings {
  private static final int GET_TIMEOUT_S = 5;
  private static final int PING_EVERY_S = 30; // finds a gateway that went away without a word
  private static final long RETRY_AFTER_MS = 1_000; // where the gateway was not there to say when
  private static final Metadata.Key<String> PUSHBACK_MS =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
  private static final JsonFormat.Printer JSON = JsonFormat.printer().omittingInsignificantWhitespace();

  private final RatingsServiceBlockingStub stub;
  private final Path tokenFile;
  private String token;
  private SubscribePhase phase;
  private long left;

  private Ratings(RatingsServiceBlockingStub stub, Path tokenFile, long count) throws IOException {
    this.stub = stub;
    this.tokenFile = tokenFile;
    this.token = Files.exists(tokenFile) ? Files.readString(tokenFile) : "";
    this.left = count;
  }

  public static void main(String[] args) throws InterruptedException {
    var flags = new TreeMap<>(Map.of(
        "--address", "127.0.0.1:50051",
        "--movie", "362",
        "--token-file", "ratings.token",
        "--count", String.valueOf(Long.MAX_VALUE)));
    for (int i = 0; i < args.length; i += 2) {
      if (i + 1 == args.length || flags.replace(args[i], args[i + 1]) == null) {
        System.err.println("ratings: each of " + flags.keySet() + " takes a value, and there are no others");
        System.exit(2);
      }
    }
    ManagedChannel channel =
        Grpc.newChannelBuilder(flags.get("--address"), InsecureChannelCredentials.create())
            .keepAliveTime(PING_EVERY_S, SECONDS)
            .build();
    try {
      var stub = RatingsServiceGrpc.newBlockingStub(channel);
      get(stub, Long.parseLong(flags.get("--movie")));
      new Ratings(stub, Path.of(flags.get("--token-file")), Long.parseLong(flags.get("--count"))).follow();
    } catch (StatusRuntimeException | IOException | NumberFormatException error) {
      System.err.println("ratings: " + error.getMessage());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }

  private static void get(RatingsServiceBlockingStub stub, long movie) throws InvalidProtocolBufferException {
    var request = GetRatingRequest.newBuilder().setMovieId(movie).build();
    var response = stub.withDeadlineAfter(GET_TIMEOUT_S, SECONDS).getRating(request);
    write(GetRatingResponse.newBuilder().setRating(response.getRating()).build());
  }

  /** Opens streams, each where the one before ended, until nothing is left to write. */
  private void follow() throws IOException, InterruptedException {
    while (left > 0) {
      var options = SubscribeOptions.newBuilder().setResumeToken(token);
      var request = SubscribeRatingsRequest.newBuilder().setSubscribeOptions(options).build();
      try {
        for (var responses = stub.subscribeRatings(request); left > 0; ) {
          take(responses.next());
        }
      } catch (StatusRuntimeException error) {
        if (error.getStatus().getCode() != Status.Code.UNAVAILABLE) {
          throw error;
        }
        long pauseMs = pushbackMs(error);
        System.err.println("ratings: " + error.getMessage() + "; again in " + pauseMs + " ms");
        Thread.sleep(pauseMs);
      }
    }
  }

  /** Writes a message. Its token is kept once its changes are written: after a crash some may come again, none is lost. */
  private void take(SubscribeRatingsResponse response) throws IOException {
    for (RatingChange change : response.getChangesList()) {
      write(change);
    }
    left -= response.getChangesCount();
    var progress = response.getProgress();
    if (progress.getPhase() != phase) {
      phase = progress.getPhase();
      System.out.println("{\"phase\": \"" + phase.name().replace("SUBSCRIBE_PHASE_", "") + "\"}");
    }
    token = progress.getResumeToken();
    Path draft = Path.of(tokenFile + ".new");
    Files.writeString(draft, token);
    Files.move(draft, tokenFile, REPLACE_EXISTING);
  }

  /** Returns how long the gateway asks to wait. */
  private static long pushbackMs(StatusRuntimeException error) {
    var trailers = error.getTrailers();
    var text = trailers == null ? null : trailers.get(PUSHBACK_MS);
    return text == null ? RETRY_AFTER_MS : Long.parseLong(text);
  }

  private static void write(Message message) throws InvalidProtocolBufferException {
    System.out.println(JSON.print(message));
  }
}
