package org.example.tablegate;

import static java.nio.file.StandardCopyOption.ATOMIC_MOVE;
import static java.nio.file.StandardCopyOption.REPLACE_EXISTING;
import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.TRUNCATE_EXISTING;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Set;

/**
 * Keeps one token. A subscription loads it once, and saves each newer one when its consumer has all events before it.
 *
 * <p>So a consumer that ends anywhere gets each event at least once: what it makes of one must be done before it asks
 * for the next. For a copy that outlives the program that is not enough: keep it with the token of its last event, in
 * one transaction, and give that in the request.
 */
public interface TokenStore {
  /** Returns the token that was saved last; "" where there is none. */
  String load() throws IOException;

  /** Keeps a token instead of the one before. */
  void save(String token) throws IOException;

  /** Returns a store that keeps it for as long as the program lives. */
  static TokenStore inMemory() {
    return new TokenStore() {
      private volatile String kept = "";

      @Override
      public String load() {
        return kept;
      }

      @Override
      public void save(String token) {
        kept = token;
      }
    };
  }

  /**
   * Returns a store that keeps it in this file, which has one complete token at any moment.
   *
   * <p>It is not forced to disk: after a lost power an older token, or none, leads to changes that come once more.
   */
  static TokenStore inFile(Path path) {
    return new TokenStore() {
      @Override
      public String load() throws IOException {
        try {
          return Files.readString(path).trim();
        } catch (NoSuchFileException error) {
          return "";
        }
      }

      @Override
      public void save(String token) throws IOException {
        Path next = path.resolveSibling(path.getFileName() + ".next");
        boolean isPosix = path.getFileSystem().supportedFileAttributeViews().contains("posix");
        FileAttribute<?>[] mine =
            isPosix
                ? new FileAttribute<?>[] {
                  PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
                }
                : new FileAttribute<?>[0];
        try (var file = Files.newByteChannel(next, Set.of(CREATE, TRUNCATE_EXISTING, WRITE), mine)) {
          ByteBuffer left = ByteBuffer.wrap((token + "\n").getBytes(StandardCharsets.UTF_8));
          while (left.hasRemaining()) {
            file.write(left);
          }
        }
        Files.move(next, path, ATOMIC_MOVE, REPLACE_EXISTING);
      }
    };
  }
}
