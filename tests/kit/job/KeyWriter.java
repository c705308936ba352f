import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes the keys of its input, a line each in hex, as a Java producer does by default. Arguments: bootstrap, topic. */
public class KeyWriter {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        var input = new BufferedReader(new InputStreamReader(System.in));
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (var line = input.readLine(); line != null; line = input.readLine()) {
                producer.send(new ProducerRecord<>(arguments[1], HexFormat.of().parseHex(line), new byte[0])).get();
            }
        }
    }
}
