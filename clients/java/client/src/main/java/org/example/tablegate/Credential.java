package org.example.tablegate;

/** Has the credential that is good now: a JWT or an API key. Each call asks for it, in a thread of gRPC's. */
@FunctionalInterface
public interface Credential {
  /**
   * Returns it; it must be quick. What it throws ends the call: a {@code StatusRuntimeException} of UNAVAILABLE is
   * tried again, anything else is not.
   */
  String get() throws Exception;

  /** Returns one that stays as it is. */
  static Credential of(String text) {
    return () -> text;
  }
}
