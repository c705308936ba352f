/**
 * The Java client of Tablegate gateways. It does what generated code does not do by itself: tables that stay live,
 * subscriptions that outlive their streams, reads that see what you have written.
 *
 * <p>It works over the code that {@code protoc} and {@code protoc-gen-grpc-java} make of a contract, and without any,
 * over a contract's descriptors ({@link org.example.tablegate.Contract}).
 */
package org.example.tablegate;
