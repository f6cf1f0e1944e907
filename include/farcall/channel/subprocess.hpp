// SPDX-License-Identifier: Apache-2.0
//
// A function in a child process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "farcall/channel/mechanism.hpp"
#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::channel {

// How a process ended.
struct ExitStatus {
  int code = 0;    // valid if signal is 0
  int signal = 0;  // the signal that killed it, or 0

  [[nodiscard]] bool success() const noexcept { return code == 0 && signal == 0; }
  // "exited with 3", "killed by SIGSEGV"
  [[nodiscard]] std::string describe() const;
};

// Owns a forked child. Never leaves a zombie: the destructor waits up to a second for a child that
// nobody has waited for, then kills it. In a forked child of this process it does nothing.
class Subprocess {
 public:
  // Forks; the child runs `body` and exits with what it returns, without unwinding into the
  // parent's destructors or atexit handlers; standard streams are flushed. An exception that
  // leaves `body` is printed to stderr, and the child exits with 125. If this process dies first,
  // or the thread that called this ends, the child is killed. Throws SystemError.
  explicit Subprocess(const std::function<int()>& body);
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&& other) noexcept;
  ~Subprocess();

  // Waits for the end; the same answer again if asked again. Throws SystemError.
  ExitStatus wait();
  // std::nullopt if it still runs at the deadline.
  std::optional<ExitStatus> wait(Deadline deadline);
  // Sends a signal; nothing happens if it has ended already. Throws SystemError.
  void kill(int signal);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool running();

 private:
  pid_t pid_ = -1;     // -1: moved away
  pid_t parent_ = -1;  // whose child it is
  UniqueFd pidfd_;     // none on kernels before 5.3 and under valgrind
  std::optional<ExitStatus> status_;
};

// A child that writes and this process that reads, over one channel, as in:
//   auto [child, in] = spawn_writer(Channel<Pipe>(), [](Writer& out) { ...; return 0; });
struct ReadFromChild {
  Subprocess child;
  std::unique_ptr<Reader> reader;
};
struct WriteToChild {
  Subprocess child;
  std::unique_ptr<Writer> writer;
};
struct TalkWithChild {
  Subprocess child;
  DuplexEnd end;
};
ReadFromChild spawn_writer(AnyChannel channel, std::function<int(Writer&)> body);
WriteToChild spawn_reader(AnyChannel channel, std::function<int(Reader&)> body);
TalkWithChild spawn(AnyDuplex duplex, std::function<int(DuplexEnd)> body);

}  // namespace farcall::channel
