package org.example.tablegate;

import com.google.protobuf.Message;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A copy of a table, made of a subscription's events. One thread at a time applies; any may read {@code shown}.
 *
 * <p>Nobody sees half of a snapshot: the first is shown when it is complete, and a later one replaces the rows at once.
 */
final class Rows<Row extends Message> {
  private volatile Map<Key, Row> shown = new ConcurrentHashMap<>();
  private Map<Key, Row> snapshot; // null where none is on its way
  private boolean isShared; // somebody has the rows of a moment: the next change goes into a copy

  Map<Key, Row> shown() {
    return shown;
  }

  /** Returns the rows of this moment, for whoever applies none meanwhile. */
  Map<Key, Row> share() {
    isShared = true;
    return Collections.unmodifiableMap(shown);
  }

  /** Applies an event, and returns the changes that readers see by it. */
  List<Change<Row>> apply(Event<Row> event) {
    switch (event.kind()) {
      case RESET:
        snapshot = new ConcurrentHashMap<>();
        return List.of();
      case UPSERT:
      case DELETE:
        return change(event);
      case CURRENT:
        return publishSnapshot();
      default:
        return List.of();
    }
  }

  private List<Change<Row>> change(Event<Row> event) {
    if (snapshot == null && isShared) {
      shown = new ConcurrentHashMap<>(shown);
      isShared = false;
    }
    Map<Key, Row> into = snapshot == null ? shown : snapshot;
    if (event.row() == null) {
      into.remove(event.key());
    } else {
      into.put(event.key(), event.row());
    }
    return snapshot == null ? List.of(new Change<>(event.key(), event.row())) : List.of();
  }

  private List<Change<Row>> publishSnapshot() {
    if (snapshot == null) {
      return List.of();
    }
    List<Change<Row>> changes = new ArrayList<>();
    for (Key key : shown.keySet()) {
      if (!snapshot.containsKey(key)) {
        changes.add(new Change<>(key, null));
      }
    }
    for (Map.Entry<Key, Row> now : snapshot.entrySet()) {
      Row old = shown.get(now.getKey());
      if (now.getValue().equals(old)) {
        now.setValue(old); // who compares rows by identity sees no change
      } else {
        changes.add(new Change<>(now.getKey(), now.getValue()));
      }
    }
    shown = snapshot;
    snapshot = null;
    isShared = false;
    return changes;
  }
}
