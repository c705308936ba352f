package org.example.tablegate;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;
import java.util.Set;

/** Why a call ended. {@code reason} is the gateway's, "" where it gave none. */
final class Failure {
  private static final String DOMAIN = "tablegate";
  private static final Set<String> PASSING_REASONS = Set.of("LIMIT_EXCEEDED", "OVERLOADED", "SLOW_SUBSCRIBER");
  private static final Metadata.Key<byte[]> DETAILS =
      Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  final Status.Code code;
  final String text;
  final String reason;
  final Duration retryAfter;

  Failure(Status.Code code, String text, String reason, Duration retryAfter) {
    this.code = code;
    this.text = text;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }

  /** Returns a failure that is nobody's word: the stream ended, or was silent. */
  static Failure broken(String text) {
    return new Failure(Status.Code.UNAVAILABLE, text, "", Duration.ZERO);
  }

  /** Returns why a call threw. */
  static Failure of(Throwable thrown) {
    return of(Status.fromThrowable(thrown), Status.trailersFromThrowable(thrown));
  }

  static Failure of(Status status, Metadata trailers) {
    String reason = "";
    Duration retryAfter = Duration.ZERO;
    byte[] details = trailers == null ? null : trailers.get(DETAILS);
    if (details != null) {
      try {
        for (Any detail : com.google.rpc.Status.parseFrom(details).getDetailsList()) {
          if (detail.is(ErrorInfo.class)) {
            ErrorInfo info = detail.unpack(ErrorInfo.class);
            reason = info.getDomain().equals(DOMAIN) ? info.getReason() : reason;
          } else if (detail.is(RetryInfo.class)) {
            retryAfter = Fields.duration(detail.unpack(RetryInfo.class).getRetryDelay());
          }
        }
      } catch (InvalidProtocolBufferException error) {
        reason = ""; // it is of something between the gateway and here
        retryAfter = Duration.ZERO;
      }
    }
    String text = status.getDescription() == null ? "no details" : status.getDescription();
    return new Failure(status.getCode(), text, reason, retryAfter.isNegative() ? Duration.ZERO : retryAfter);
  }

  /** Whether the same call may do better later. */
  boolean passes() {
    return code == Status.Code.UNAVAILABLE || code == Status.Code.CANCELLED || PASSING_REASONS.contains(reason);
  }

  /**
   * Whether it may where a stream had brought something.
   *
   * <p>A stream ends with the credential that it was begun with: the next one shows that which is good by then. And a
   * gateway gives a reason with each refusal: without one a proxy has reset the stream, or ended it halfway.
   */
  boolean passesOnceAdmitted() {
    boolean isCutOff = (code == Status.Code.INTERNAL || code == Status.Code.UNKNOWN) && reason.isEmpty();
    return passes() || code == Status.Code.UNAUTHENTICATED || isCutOff;
  }
}
