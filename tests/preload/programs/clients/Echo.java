// SPDX-License-Identifier: Apache-2.0
//
// An echo service and its client on Java NIO: one thread, one selector.
// Usage: java Echo.java server PLACE | java Echo.java client PLACE CONNECTIONS BYTES; a port, or a path
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Random;

public class Echo {
  static final class Client {
    final byte[] data;
    int sent;
    int received;

    Client(int number, int bytes) {
      data = new byte[1 + number * bytes];
      new Random(number).nextBytes(data);
    }
  }

  public static void main(String[] arguments) throws Exception {
    SocketAddress place = arguments[1].startsWith("/")
        ? UnixDomainSocketAddress.of(arguments[1])
        : new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1]));
    if (arguments[0].equals("server")) serve(place);
    else ask(place, Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
  }

  static StandardProtocolFamily family(SocketAddress place) {
    return place instanceof UnixDomainSocketAddress ? StandardProtocolFamily.UNIX
                                                    : StandardProtocolFamily.INET;
  }

  static void serve(SocketAddress place) throws Exception {
    Selector selector = Selector.open();
    ServerSocketChannel listener = ServerSocketChannel.open(family(place));
    listener.bind(place, 128);
    listener.configureBlocking(false);
    listener.register(selector, SelectionKey.OP_ACCEPT);
    while (true) {
      selector.select();
      for (SelectionKey key : selector.selectedKeys()) {
        if (key.isAcceptable()) {
          SocketChannel accepted = listener.accept();
          if (accepted == null) continue;
          accepted.configureBlocking(false);
          accepted.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
        } else {
          serveOne(key);
        }
      }
      selector.selectedKeys().clear();
    }
  }

  // The buffer is filled, then emptied, in turns.
  static void serveOne(SelectionKey key) throws Exception {
    SocketChannel channel = (SocketChannel) key.channel();
    ByteBuffer buffer = (ByteBuffer) key.attachment();
    if (key.isReadable()) {
      if (channel.read(buffer) < 0) {
        channel.close();
        return;
      }
      buffer.flip();
    }
    channel.write(buffer);
    if (buffer.hasRemaining()) {
      key.interestOps(SelectionKey.OP_WRITE);
    } else {
      buffer.clear();
      key.interestOps(SelectionKey.OP_READ);
    }
  }

  static void ask(SocketAddress place, int connections, int bytes) throws Exception {
    Selector selector = Selector.open();
    for (int number = 0; number < connections; number++) {
      SocketChannel channel = SocketChannel.open(family(place));
      channel.configureBlocking(false);
      // A unix socket is connected at once.
      boolean connected = channel.connect(place);
      channel.register(selector,
          connected ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_CONNECT,
          new Client(number, bytes));
    }
    ByteBuffer buffer = ByteBuffer.allocate(50000);
    int open = connections;
    while (open > 0) {
      if (selector.select(30000) == 0) throw new Exception("nothing happens");
      for (SelectionKey key : selector.selectedKeys()) {
        SocketChannel channel = (SocketChannel) key.channel();
        Client client = (Client) key.attachment();
        if (key.isConnectable() && channel.finishConnect())
          key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        if (key.isValid() && key.isReadable()) {
          buffer.clear();
          int size = channel.read(buffer);
          if (size < 0) throw new Exception("the server closed");
          for (int i = 0; i < size; i++)
            if (buffer.get(i) != client.data[client.received++]) throw new Exception("wrong bytes");
        }
        if (key.isValid() && key.isWritable()) {
          int size = Math.min(30000, client.data.length - client.sent);
          client.sent += channel.write(ByteBuffer.wrap(client.data, client.sent, size));
          if (client.sent == client.data.length) key.interestOps(SelectionKey.OP_READ);
        }
        if (client.received == client.data.length) {
          channel.close();
          open--;
        }
      }
      selector.selectedKeys().clear();
    }
    System.out.println(connections + " echoes");
  }
}
