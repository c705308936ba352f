package org.example.tablegate;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import io.grpc.Status;
import java.util.concurrent.Executor;

/** Shows a credential over whatever the connection is: loopback has no TLS. */
final class ShownCredential extends CallCredentials {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Credential credential;

  ShownCredential(Credential credential) {
    this.credential = credential;
  }

  @Override
  public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
    // Not in the thread that asks: that one moves the bytes of all calls.
    executor.execute(
        () -> {
          Metadata shown = new Metadata();
          try {
            shown.put(AUTHORIZATION, "Bearer " + credential.get());
          } catch (Exception error) {
            applier.fail(statusOf(error));
            return;
          }
          applier.apply(shown);
        });
  }

  private static Status statusOf(Exception error) {
    Status status = Status.fromThrowable(error);
    return status.getCode() == Status.Code.UNKNOWN
        ? Status.UNAUTHENTICATED.withDescription("the credential could not be had: " + error).withCause(error)
        : status;
  }
}
