package tablegate.driver;

import com.example.examples.ratings.v1.GetRatingRequest;
import com.example.examples.ratings.v1.Rating;
import com.example.examples.ratings.v1.RatingsServiceGrpc;
import com.example.examples.ratings.v1.SubscribeRatingsRequest;
import com.example.tablegate.v1.SubscribeOptions;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.GsonBuilder;
import com.google.protobuf.util.Durations;
import com.google.protobuf.util.JsonFormat;
import io.grpc.StatusRuntimeException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.example.tablegate.Change;
import org.example.tablegate.Credential;
import org.example.tablegate.Event;
import org.example.tablegate.LiveTable;
import org.example.tablegate.Reads;
import org.example.tablegate.SourceRecord;
import org.example.tablegate.SubscribeException;
import org.example.tablegate.Subscription;
import org.example.tablegate.Tablegate;
import org.example.tablegate.TokenStore;

/**
 * The client of clients/scenarios.txt: tests/kit/client_scenarios asks it. A command and its answer are lines of JSON.
 */
public final class Driver {
  private static final Gson JSON = new GsonBuilder().serializeNulls().create();

  private Tablegate connection; // null when it is closed; the table stays
  private LiveTable<Rating> table;
  private Heard heard;

  public static void main(String[] args) throws Exception {
    var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    var driver = new Driver();
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println(JSON.toJson(driver.ask(JsonParser.parseString(line).getAsJsonObject())));
    }
    driver.close();
  }

  /** What a table has told of its changes. */
  private static final class Heard {
    private final Map<String, Long> counts = new HashMap<>();
    private final Set<Integer> sizes = new HashSet<>();

    synchronized void hear(LiveTable<Rating> table, Change<Rating> change) {
      sizes.add(table.size());
      change
          .row()
          .ifPresentOrElse(
              row -> counts.put(change.key().toString(), row.getRatingCount()),
              () -> counts.remove(change.key().toString()));
    }

    synchronized Map<String, Object> show() {
      return Map.of("heard", Map.copyOf(counts), "sizes", Set.copyOf(sizes));
    }
  }

  private Object ask(JsonObject asked) throws Exception {
    switch (text(asked, "do")) {
      case "open":
        open(asked);
        return null;
      case "show":
        return show();
      case "row":
        return table.get(Long.parseLong(text(asked, "movie"))).map(Rating::getRatingCount).orElse(null);
      case "follow":
        return follow(asked);
      case "get":
        return get(asked);
      case "close":
        close();
        return null;
      default:
        throw new IllegalArgumentException("there is no such command: " + asked);
    }
  }

  private static String text(JsonObject asked, String name) {
    JsonElement value = asked.get(name);
    return value == null || value.isJsonNull() ? null : value.getAsString();
  }

  private void open(JsonObject asked) throws Exception {
    close();
    var request = SubscribeRatingsRequest.newBuilder();
    JsonFormat.parser().merge(asked.get("request").toString(), request);
    var settings = Tablegate.to(text(asked, "address"));
    if (text(asked, "credential") != null) {
      settings.credential(Credential.of(text(asked, "credential")));
    }
    connection = settings.connect();
    heard = new Heard();
    var method = RatingsServiceGrpc.getSubscribeRatingsMethod();
    table = LiveTable.open(connection, method, request.build(), Rating.class, heard::hear);
  }

  private void close() throws Exception {
    if (connection != null) {
      table.close();
      table.ended().get();
      connection.close();
      connection = null;
    }
  }

  private Object show() {
    var rows = new HashMap<String, Long>();
    table.rows().forEach((key, row) -> rows.put(key.toString(), row.getRatingCount()));
    var status = table.status();
    var shown = new TreeMap<String, Object>();
    shown.put("code", "");
    shown.put("reason", "");
    status.error().ifPresent(error -> shown.putAll(refusal((SubscribeException) error)));
    shown.put("state", status.state().name().toLowerCase());
    shown.put("trouble", status.trouble());
    shown.put("rows", rows);
    shown.putAll(heard.show());
    return shown;
  }

  /** Returns what a gateway has refused a subscription with. */
  private static Map<String, Object> refusal(SubscribeException error) {
    return Map.of("code", error.code().name(), "reason", error.reason());
  }

  private static Object follow(JsonObject asked) throws IOException {
    var tokens = TokenStore.inMemory();
    tokens.save(text(asked, "token"));
    var options = SubscribeOptions.newBuilder().setProgressInterval(Durations.fromMillis(100));
    var request = SubscribeRatingsRequest.newBuilder().setSubscribeOptions(options).build();
    boolean reset = false;
    boolean done = false;
    var given = new HashSet<String>();
    try (var connection = Tablegate.connect(text(asked, "address"))) {
      var settings =
          Subscription.of(connection, RatingsServiceGrpc.getSubscribeRatingsMethod(), request, Rating.class);
      settings.tokens(tokens);
      if (asked.get("restart").getAsBoolean()) {
        settings.restart();
      }
      try (var events = settings.open()) {
        for (Event<Rating> event : events) {
          if (done) { // by asking for this event all before it was seen to
            break;
          }
          switch (event.kind()) {
            case RESET:
              reset = true;
              break;
            case UPSERT:
            case DELETE:
              given.add(event.key().toString());
              break;
            case CURRENT:
            case CATCHING_UP:
              done = given.contains(text(asked, "until"));
              break;
            default:
          }
        }
      }
    } catch (SubscribeException error) {
      return refusal(error);
    }
    return Map.of("reset", reset, "movies", given, "token", tokens.load());
  }

  private static Object get(JsonObject asked) {
    var request = GetRatingRequest.newBuilder().setMovieId(Long.parseLong(text(asked, "movie"))).build();
    if (asked.get("record").isJsonObject()) {
      JsonObject record = asked.getAsJsonObject("record");
      int partition = record.get("partition").getAsInt();
      long offset = record.get("offset").getAsLong();
      request = Reads.atLeastSource(request, SourceRecord.of(text(record, "topic"), partition, offset));
    }
    try (var connection = Tablegate.connect(text(asked, "address"))) {
      var response = RatingsServiceGrpc.newBlockingStub(connection).getRating(request);
      return Map.of("count", response.getRating().getRatingCount());
    } catch (StatusRuntimeException error) {
      return Map.of("code", error.getStatus().getCode().name(), "reason", Reads.reason(error));
    }
  }
}
