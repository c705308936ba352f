package org.example.tablegate;

/** A message is none of the query, or a contract has no such method; the text says what is missing. */
public final class ContractMismatchException extends IllegalArgumentException {
  private static final long serialVersionUID = 1;

  ContractMismatchException(String text) {
    super(text);
  }
}
