import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/**
 * Runs cases of grpc-java's interoperability tests, all in one process, as its own client runs one:
 * {@code PORT CASE...}. It prints a line for each: the case, and what went wrong, or nothing.
 */
public final class InteropCases {
  private static final String CLIENT = "io.grpc.testing.integration.TestServiceClient";

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // the client prints there, too
    for (int i = 1; i < arguments.length; i++) {
      out.println(arguments[i] + "\t" + wrong(arguments[0], arguments[i]));
      out.flush();
    }
    System.exit(0);
  }

  private static String wrong(String port, String name) throws Exception {
    var made = Class.forName(CLIENT).getDeclaredConstructor();
    made.setAccessible(true);
    Object client = made.newInstance();
    String[] options = {
      "--server_host=127.0.0.1",
      "--server_port=" + port,
      "--use_tls=false",
      "--test_case=" + name,
      "--soak_iterations=100",
      "--soak_overall_timeout_seconds=50",
      "--soak_per_iteration_max_acceptable_latency_ms=5000",
    };
    call(client, "parseArgs", new Class<?>[] {String[].class}, (Object) options);
    call(client, "setUp", new Class<?>[0]);
    try {
      call(client, "run", new Class<?>[0]);
      return "";
    } catch (InvocationTargetException error) {
      return error.getCause().toString().replaceAll("\\s+", " ");
    } finally {
      call(client, "tearDown", new Class<?>[0]);
    }
  }

  private static void call(Object client, String name, Class<?>[] kinds, Object... values)
      throws Exception {
    Method method = client.getClass().getDeclaredMethod(name, kinds);
    method.setAccessible(true);
    method.invoke(client, values);
  }
}
