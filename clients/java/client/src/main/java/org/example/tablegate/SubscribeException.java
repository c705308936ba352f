package org.example.tablegate;

import io.grpc.Status;

/** The gateway refuses the subscription, and would again: the message says why. */
public final class SubscribeException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final Status.Code code;
  private final String reason;

  SubscribeException(Failure why, String advice) {
    super(why.code + (why.reason.isEmpty() ? "" : " (" + why.reason + ")") + ": " + why.text + advice);
    this.code = why.code;
    this.reason = why.reason;
  }

  /** Returns the gRPC status. */
  public Status.Code code() {
    return code;
  }

  /** Returns the gateway's ErrorReason without its prefix, or "". */
  public String reason() {
    return reason;
  }
}
