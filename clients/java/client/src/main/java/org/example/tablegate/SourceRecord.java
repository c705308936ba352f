package org.example.tablegate;

/** Where a record of a source topic is: what Kafka's RecordMetadata says to its producer. */
public final class SourceRecord {
  final String topic;
  final int partition;
  final long offset;

  private SourceRecord(String topic, int partition, long offset) {
    this.topic = topic;
    this.partition = partition;
    this.offset = offset;
  }

  /** Returns a record that was acknowledged. */
  public static SourceRecord of(String topic, int partition, long offset) {
    if (topic.isEmpty() || partition < 0 || offset < 0) {
      throw new IllegalArgumentException(
          String.format(
              "the record at \"%s\"/%d/%d is not acknowledged: give what the producer got, with acks=1 or acks=all",
              topic, partition, offset));
    }
    return new SourceRecord(topic, partition, offset);
  }
}
