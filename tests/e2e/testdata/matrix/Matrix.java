import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads, a timer, a heap that is collected, a server and a client that stay connected. */
public class Matrix {
  static final AtomicInteger ticks = new AtomicInteger();
  static final byte[] memory = new byte[10 << 20];

  public static void main(String[] args) throws Exception {
    Arrays.fill(memory, (byte) 7);
    var timer = Executors.newScheduledThreadPool(2, Matrix::daemon);
    timer.scheduleAtFixedRate(ticks::incrementAndGet, 0, 10, TimeUnit.MILLISECONDS);
    var server = new ServerSocket(0, 8, InetAddress.getLoopbackAddress());
    daemon(() -> echo(server)).start();
    var peer = new Socket(InetAddress.getLoopbackAddress(), server.getLocalPort());
    System.out.println("ready");
    var lines = new BufferedReader(new InputStreamReader(System.in));
    for (int n = 1; lines.readLine() != null; n++) {
      String bad = check(peer, n);
      System.out.println(bad.isEmpty() ? "ok " + n : "bad " + n + ": " + bad);
    }
  }

  static Thread daemon(Runnable work) {
    var thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  }

  static void echo(ServerSocket server) {
    try (var socket = server.accept()) {
      socket.getInputStream().transferTo(socket.getOutputStream());
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  static String check(Socket peer, int n) throws Exception {
    int before = ticks.get();
    for (int waited = 0; ticks.get() < before + 3; waited += 10) {
      if (waited > 30000) return "the timer stands still";
      Thread.sleep(10);
    }
    peer.getOutputStream().write(n);
    int echo = peer.getInputStream().read();
    if (echo != n) return "the server says " + echo;
    System.gc();
    for (byte b : memory) if (b != 7) return "the heap is another one";
    return "";
  }
}
