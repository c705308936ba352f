package org.example.tablegate;

import static java.util.concurrent.TimeUnit.SECONDS;

import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.DescriptorValidationException;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.Descriptors.ServiceDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Empty;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.UnknownFieldSet;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Methods of a contract without generated code: their messages are DynamicMessages.
 *
 * <pre>{@code
 * var contract = Contract.of(connection, "examples.ratings.v1.RatingsService");
 * var method = contract.method("examples.ratings.v1.RatingsService/SubscribeRatings");
 * var request = Contract.request(method).build();
 * var table = LiveTable.open(connection, method, request, DynamicMessage.class);
 * }</pre>
 */
public final class Contract {
  private static final long DEADLINE_S = 5;
  private static final int FILES_MAX = 1_000; // a gateway that answers with ever new imports is none

  // Of grpc.reflection.v1, by numbers: no code of it is needed for two requests.
  private static final int FILE_BY_NAME = 3;
  private static final int FILE_OF_SYMBOL = 4;
  private static final int ANSWERED_FILES = 4;
  private static final int ANSWERED_ERROR = 7;
  private static final int ERROR_CODE = 1;
  private static final int ERROR_TEXT = 2;
  private static final MethodDescriptor<Empty, Empty> REFLECTION =
      Contract.<Empty, Empty>methodOf(
              "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", MethodType.BIDI_STREAMING)
          .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .build();

  private final Map<String, FileDescriptor> files;

  private Contract(Map<String, FileDescriptor> files) {
    this.files = files;
  }

  /** Reads a FileDescriptorSet, as {@code buf build -o FILE} writes it, or protoc with --include_imports. */
  public static Contract read(Path path) throws IOException {
    return of(FileDescriptorSet.parseFrom(Files.readAllBytes(path)));
  }

  /** Returns the contract of these files, and of all that they import. */
  public static Contract of(FileDescriptorSet set) {
    Map<String, FileDescriptorProto> protos = new LinkedHashMap<>();
    set.getFileList().forEach(file -> protos.put(file.getName(), file));
    return linked(protos);
  }

  /**
   * Asks a gateway for the contract of a service, by reflection; the caller must be let to it.
   *
   * @param service as {@code examples.ratings.v1.RatingsService}
   * @throws StatusRuntimeException NOT_FOUND where it has no such service
   */
  public static Contract of(Channel channel, String service) {
    Map<String, FileDescriptorProto> protos = new LinkedHashMap<>();
    ask(channel, FILE_OF_SYMBOL, service, protos);
    for (String missing = missing(protos); missing != null; missing = missing(protos)) {
      ask(channel, FILE_BY_NAME, missing, protos);
      if (!protos.containsKey(missing) || protos.size() > FILES_MAX) {
        throw new ContractMismatchException("the gateway's reflection does not give " + missing);
      }
    }
    return linked(protos);
  }

  private static String missing(Map<String, FileDescriptorProto> protos) {
    return protos.values().stream()
        .flatMap(file -> file.getDependencyList().stream())
        .filter(name -> !protos.containsKey(name))
        .findFirst()
        .orElse(null);
  }

  private static void ask(Channel channel, int by, String name, Map<String, FileDescriptorProto> into) {
    var wanted = UnknownFieldSet.Field.newBuilder().addLengthDelimited(ByteString.copyFromUtf8(name)).build();
    // By its interface: what generated code has of its own differs between the versions of protobuf-java.
    Message.Builder request = Empty.newBuilder();
    request.setUnknownFields(UnknownFieldSet.newBuilder().addField(by, wanted).build());
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(DEADLINE_S, SECONDS);
    try {
      var answers = ClientCalls.blockingServerStreamingCall(channel, REFLECTION, options, (Empty) request.build());
      while (answers.hasNext()) {
        UnknownFieldSet answer = answers.next().getUnknownFields();
        for (ByteString error : answer.getField(ANSWERED_ERROR).getLengthDelimitedList()) {
          throw refused(UnknownFieldSet.parseFrom(error));
        }
        for (ByteString found : answer.getField(ANSWERED_FILES).getLengthDelimitedList()) {
          for (ByteString file : UnknownFieldSet.parseFrom(found).getField(1).getLengthDelimitedList()) {
            FileDescriptorProto proto = FileDescriptorProto.parseFrom(file);
            into.put(proto.getName(), proto);
          }
        }
      }
    } catch (InvalidProtocolBufferException error) {
      throw new ContractMismatchException("the gateway's reflection does not answer as grpc.reflection.v1 does");
    }
  }

  private static StatusRuntimeException refused(UnknownFieldSet error) {
    int code = error.getField(ERROR_CODE).getVarintList().stream().mapToInt(Long::intValue).findFirst().orElse(2);
    String text =
        error.getField(ERROR_TEXT).getLengthDelimitedList().stream()
            .map(ByteString::toStringUtf8)
            .findFirst()
            .orElse("no details");
    return Status.fromCodeValue(code).withDescription(text).asRuntimeException();
  }

  private static Contract linked(Map<String, FileDescriptorProto> protos) {
    Map<String, FileDescriptor> files = new HashMap<>();
    for (String name : protos.keySet()) {
      link(name, protos, files);
    }
    return new Contract(files);
  }

  private static FileDescriptor link(
      String name, Map<String, FileDescriptorProto> protos, Map<String, FileDescriptor> files) {
    FileDescriptor known = files.get(name);
    if (known != null) {
      return known;
    }
    FileDescriptorProto proto = protos.get(name);
    if (proto == null) {
      throw new ContractMismatchException(
          "the contract imports " + name + ", which is not in it: write it with its imports");
    }
    FileDescriptor[] imports =
        proto.getDependencyList().stream()
            .map(each -> link(each, protos, files))
            .toArray(FileDescriptor[]::new);
    try {
      FileDescriptor linked = FileDescriptor.buildFrom(proto, imports);
      files.put(name, linked);
      return linked;
    } catch (DescriptorValidationException error) {
      throw new ContractMismatchException("the contract's " + name + " is not valid: " + error.getMessage());
    }
  }

  /**
   * Returns a method.
   *
   * @param fullName as {@code examples.ratings.v1.RatingsService/GetRating}
   * @throws ContractMismatchException there is none
   */
  public MethodDescriptor<DynamicMessage, DynamicMessage> method(String fullName) {
    int slash = fullName.indexOf('/');
    for (FileDescriptor file : files.values()) {
      for (ServiceDescriptor service : file.getServices()) {
        if (slash > 0 && service.getFullName().equals(fullName.substring(0, slash))) {
          var method = service.findMethodByName(fullName.substring(slash + 1));
          if (method != null) {
            MethodType type = method.isServerStreaming() ? MethodType.SERVER_STREAMING : MethodType.UNARY;
            return Contract.<DynamicMessage, DynamicMessage>methodOf(fullName, type)
                .setRequestMarshaller(marshaller(method.getInputType()))
                .setResponseMarshaller(marshaller(method.getOutputType()))
                .build();
          }
        }
      }
    }
    throw new ContractMismatchException(
        "the contract has no method " + fullName + ": name it as examples.ratings.v1.RatingsService/GetRating");
  }

  private static <Q, R> MethodDescriptor.Builder<Q, R> methodOf(String fullName, MethodType type) {
    return MethodDescriptor.<Q, R>newBuilder().setType(type).setFullMethodName(fullName);
  }

  private static MethodDescriptor.Marshaller<DynamicMessage> marshaller(Descriptor message) {
    return ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(message));
  }

  /** Returns the builder of a method's request. */
  public static DynamicMessage.Builder request(MethodDescriptor<DynamicMessage, ?> method) {
    var marshaller = (MethodDescriptor.PrototypeMarshaller<DynamicMessage>) method.getRequestMarshaller();
    return marshaller.getMessagePrototype().newBuilderForType();
  }
}
