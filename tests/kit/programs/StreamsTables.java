import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.Stores;

/**
 * Five tables of one topic in Kafka Streams, a store of each kind, which are asked by interactive queries: a line "N" on
 * stdin waits for N inputs, and prints all rows, then "end". Arguments: bootstrap, application, topic, topic for windows.
 */
public class StreamsTables {
    private static final Duration SIZE = Duration.ofMinutes(1);
    private static final Duration KEPT = Duration.ofDays(1);

    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", System.getProperty("java.io.tmpdir") + "/" + arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("commit.interval.ms", "200");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("num.stream.threads", "1");
        var folded = new AtomicLong();
        var builder = new StreamsBuilder();
        var text = Serdes.String();
        var input = builder.stream(arguments[2], Consumed.with(text, text)).groupByKey(Grouped.with(text, text));
        input.aggregate(() -> "", (key, value, old) -> {
            folded.incrementAndGet();
            return value.equals("delete") ? null : "{\"quantity\":" + (number(old) + 1) + ",\"customer\":\"" + value + "\"}";
        }, Materialized.<String, String>as(Stores.inMemoryKeyValueStore("totals")).withKeySerde(text).withValueSerde(text));
        Aggregator<String, String, String> counting = (key, value, old) -> value.equals("delete") ? null
            : "{\"quantity\":" + (number(old) + 1) + "}";
        input.aggregate(() -> "", counting, Materialized.<String, String>as(
            Stores.persistentTimestampedKeyValueStore("stamped")).withKeySerde(text).withValueSerde(text));
        input.aggregate(() -> "", counting, Materialized.<String, String>as(
            Stores.persistentVersionedKeyValueStore("versions", KEPT)).withKeySerde(text).withValueSerde(text));
        var views = input.windowedBy(TimeWindows.ofSizeWithNoGrace(SIZE)).aggregate(() -> "",
            (key, value, old) -> "{\"view_count\":" + (number(old) + 1) + "}",
            Materialized.<String, String>as(Stores.inMemoryWindowStore("views", KEPT, SIZE, false)).withKeySerde(text).withValueSerde(text));
        views.toStream().to(arguments[3], Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, SIZE.toMillis()), text));
        input.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(5), KEPT)).aggregate(() -> "",
            (key, value, old) -> "{\"event_count\":" + (number(old) + 1) + "}",
            (key, one, other) -> "{\"event_count\":" + (number(one) + number(other)) + "}",
            Materialized.<String, String>as(Stores.inMemorySessionStore("sessions", KEPT)).withKeySerde(text).withValueSerde(text));

        var streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (var line = in.readLine(); line != null; line = in.readLine()) {
            while (folded.get() < Long.parseLong(line)) Thread.sleep(50);
            Thread.sleep(500); // the other tables of the last input
            print(streams);
        }
        streams.close();
    }

    private static long number(String old) {
        return old == null || old.isEmpty() ? 0 : Long.parseLong(old.replaceFirst("^\\{\"[a-z_]+\":(\\d+).*", "$1"));
    }

    private static void print(KafkaStreams streams) {
        var totals = streams.store(StoreQueryParameters.fromNameAndType("totals", QueryableStoreTypes.<String, String>keyValueStore()));
        try (var rows = totals.all()) {
            rows.forEachRemaining(row -> System.out.println("totals\t" + row.key + "\t" + row.value));
        }
        var keys = new TreeSet<String>();
        var stamped = streams.store(StoreQueryParameters.fromNameAndType("stamped", QueryableStoreTypes.<String, String>timestampedKeyValueStore()));
        try (var rows = stamped.all()) {
            rows.forEachRemaining(row -> {
                keys.add(row.key);
                System.out.println("stamped\t" + row.key + "\t" + row.value.value());
            });
        }
        for (var key : keys) {
            var answer = streams.query(StateQueryRequest.inStore("versions").withQuery(VersionedKeyQuery.<String, String>withKey(key)));
            for (var found : answer.getPartitionResults().values()) {
                if (found.isFailure()) throw new IllegalStateException(found.getFailureMessage());
                if (found.getResult() != null) System.out.println("versions\t" + key + "\t" + found.getResult().value());
            }
        }
        var views = streams.store(StoreQueryParameters.fromNameAndType("views", QueryableStoreTypes.<String, String>windowStore()));
        try (var rows = views.fetchAll(Instant.EPOCH, Instant.now().plus(KEPT))) {
            rows.forEachRemaining(row -> System.out.println("views\t" + row.key.key() + "\t" + row.key.window().start() + "\t" + row.value));
        }
        var sessions = streams.store(StoreQueryParameters.fromNameAndType("sessions", QueryableStoreTypes.<String, String>sessionStore()));
        try (var rows = sessions.fetch(null, null)) {
            rows.forEachRemaining(row -> {
                Windowed<String> key = row.key;
                System.out.println("sessions\t" + key.key() + "\t" + key.window().start() + "\t" + key.window().end() + "\t" + row.value);
            });
        }
        System.out.println("end");
    }
}
