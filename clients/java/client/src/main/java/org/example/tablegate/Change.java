package org.example.tablegate;

import com.google.protobuf.Message;
import java.util.Optional;

/**
 * A key, and its row now.
 *
 * @param <Row> the contract's message
 */
public final class Change<Row extends Message> {
  private final Key key;
  private final Row row;

  Change(Key key, Row row) {
    this.key = key;
    this.row = row;
  }

  /** Returns the key. */
  public Key key() {
    return key;
  }

  /** Returns the row; nothing where there is none any more. */
  public Optional<Row> row() {
    return Optional.ofNullable(row);
  }

  @Override
  public String toString() {
    return row == null ? key + " is gone" : key + " is " + row;
  }
}
