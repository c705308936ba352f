package org.example.tablegate;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Internal.EnumLite;
import com.google.protobuf.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * A row's key: the value of each key column, in the order of the table's key.
 *
 * <p>A whole number is a Long, whatever its type in the contract, and so is an enum, by its number; a timestamp is an
 * {@link Instant}, bytes are a {@link ByteString}; strings and booleans are themselves.
 */
public final class Key {
  private final List<Object> values;

  private Key(List<Object> values) {
    this.values = values;
  }

  /**
   * Returns the key of these values. Whole numbers of all types are the same, as are an enum and its number, a {@link
   * Timestamp} and its Instant, an array of bytes and its ByteString.
   */
  public static Key of(Object... values) {
    return of(Arrays.asList(values));
  }

  static Key of(List<?> values) {
    if (values.size() == 1) {
      return new Key(List.of(normal(values.get(0)))); // the usual one, and the smallest
    }
    List<Object> normal = new ArrayList<>(values.size());
    for (Object value : values) {
      normal.add(normal(value));
    }
    return new Key(List.copyOf(normal));
  }

  /** Returns the values. */
  public List<Object> values() {
    return values;
  }

  private static Object normal(Object value) {
    if (value instanceof Integer || value instanceof Short || value instanceof Byte) {
      return ((Number) value).longValue();
    }
    if (value instanceof EnumValueDescriptor) {
      return (long) ((EnumValueDescriptor) value).getNumber();
    }
    if (value instanceof EnumLite) {
      return (long) ((EnumLite) value).getNumber();
    }
    if (value instanceof Timestamp) {
      return Instant.ofEpochSecond(((Timestamp) value).getSeconds(), ((Timestamp) value).getNanos());
    }
    if (value instanceof byte[]) {
      return ByteString.copyFrom((byte[]) value);
    }
    if (value == null) {
      throw new NullPointerException("a key has no null in it");
    }
    return value;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Key && values.equals(((Key) other).values);
  }

  @Override
  public int hashCode() {
    return values.hashCode();
  }

  /** Returns the values as text, with commas between them. */
  @Override
  public String toString() {
    return values.stream().map(String::valueOf).collect(Collectors.joining(","));
  }
}
