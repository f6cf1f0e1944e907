// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a channel: one direction of bytes from a writer to a reader in another process.
//
// Both are std::streambufs, so `std::istream in(reader.get())` and `std::ostream out(writer.get())`
// work on them; and both have span calls, which copy once less. The two ways can be mixed: span
// calls see what a stream has buffered. An end owns its system resources and gives them back when
// it goes. It is used by one thread at a time.
//
// Errors are SystemError with the errno's name; using an end in a way that its mechanism does not
// have is a MisuseError. No call ever raises SIGPIPE, and none fails with EINTR: interrupted system
// calls are taken up again.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <streambuf>
#include <string>
#include <vector>

namespace farcall::channel {

class Reader : public std::streambuf {
 public:
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Reads at least one byte, at most into.size(); 0 only where the writer has finished (or `into`
  // is empty). Message boundaries do not matter to it. Throws SystemError: ECONNRESET where the
  // writer has died without finishing and the mechanism can tell; pipes, for one, cannot. A child
  // that the writer has forked meanwhile hides its death until it ends or executes a program.
  std::size_t read(std::span<std::byte> into);
  // Reads until `into` is full or the writer has finished; returns how much.
  std::size_t read_fully(std::span<std::byte> into);
  // Reads one message; std::nullopt where the writer has finished. Throws MisuseError where the
  // mechanism keeps no boundaries or a message was partly read with read(); SystemError EMSGSIZE
  // where the message is longer than `into` (it is then lost).
  std::optional<std::size_t> receive(std::span<std::byte> into);

 protected:
  Reader() = default;

  // What a mechanism provides: one read of at least one byte, 0 at the end ...
  virtual std::size_t read_some(std::span<std::byte> into) = 0;
  // ... and, if it keeps boundaries, one message (any size, also 0), std::nullopt at the end.
  virtual std::optional<std::size_t> read_message(std::span<std::byte> into);

  int_type underflow() override;
  std::streamsize xsgetn(char* into, std::streamsize count) override;

 private:
  std::vector<char> buffer_;  // allocated on first use as a stream
};

class Writer : public std::streambuf {
 public:
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Writes all bytes. Mechanisms made of messages take them in messages of at most max_message()
  // bytes.
  // Throws SystemError: EPIPE where the reader has gone.
  void write(std::span<const std::byte> bytes);
  // Writes one message, also of 0 bytes. Throws MisuseError where the mechanism keeps no
  // boundaries, SystemError EMSGSIZE where the message is longer than max_message().
  void send(std::span<const std::byte> message);
  // Tells the reader that nothing follows, after everything written so far. Idempotent; the
  // destructor does it too, but cannot report an error, and leaves it out when an exception
  // destroys the writer: to the reader it has then died. Throws SystemError.
  void finish();

  // The longest message; SIZE_MAX where there is no limit.
  [[nodiscard]] virtual std::size_t max_message() const noexcept;

 protected:
  Writer() noexcept;

  // What a mechanism provides: write at least one byte of `bytes` (not empty), tell how many ...
  virtual std::size_t write_some(std::span<const std::byte> bytes) = 0;
  // ... one whole message of at most max_message() bytes, if it keeps boundaries ...
  virtual void write_message(std::span<const std::byte> message);
  // ... and the end. Called once at most.
  virtual void write_end() = 0;
  // Where max_message() comes from and how to raise it, for the text of EMSGSIZE: "; ...".
  [[nodiscard]] virtual std::string limit_advice() const;
  // For the destructor of every mechanism's writer: finish(), errors dropped. Does nothing in a
  // forked child that has inherited the object, or if an exception destroys it.
  void finish_quietly() noexcept;

  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* from, std::streamsize count) override;
  int sync() override;

 private:
  void write_all(std::span<const std::byte> bytes);
  void flush_buffer();

  std::vector<char> buffer_;  // allocated on first use as a stream
  pid_t opened_by_;
  int exceptions_;  // in flight when it was opened
  bool finished_ = false;
};

}  // namespace farcall::channel
