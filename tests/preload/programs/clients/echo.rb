# SPDX-License-Identifier: Apache-2.0
# Usage: echo.rb server PLACE | echo.rb client PLACE CONNECTIONS BYTES; a port, or a path
require "socket"
require "digest"

mode, place, connections, bytes = ARGV
path = place.start_with?("/")

if mode == "server"
  server = path ? UNIXServer.new(place) : TCPServer.new("127.0.0.1", place.to_i)
  server.listen(128)
  loop do
    Thread.new(server.accept) do |there|
      IO.copy_stream(there, there) rescue nil
      there.close
    end
  end
end

threads = (0...connections.to_i).map do |number|
  Thread.new do
    here = path ? UNIXSocket.new(place) : TCPSocket.new("127.0.0.1", place.to_i)
    data = Random.new(number).bytes(1 + number * bytes.to_i)
    writer = Thread.new do
      data.bytes.each_slice(70_000) { |part| here.write(part.pack("C*")) }
      here.close_write
    end
    back = here.read
    writer.join
    here.close
    Digest::SHA256.digest(back) == Digest::SHA256.digest(data) ? 1 : 0
  end
end
puts "#{threads.sum(&:value)} echoes"
