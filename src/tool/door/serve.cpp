// SPDX-License-Identifier: Apache-2.0
//
// farcall door serve: a command as a server procedure.
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "farcall/door.hpp"
#include "farcall/memory.hpp"
#include "memory/write_all.hpp"
#include "process/programs.hpp"
#include "tool/door/door.hpp"
#include "tool/door/status.hpp"
#include "tool/end_signals.hpp"
#include "tool/exit_code.hpp"
#include "tool/run/program.hpp"
#include "tool/say.hpp"

namespace farcall::tool::door {
namespace {

// Where the command is, so that one that is not there is an error at once and not with every call.
std::string path_of(const std::string& name) {
  const std::string path = run::find_program(name);
  if (std::filesystem::is_directory(path)) throw DoorError(EISDIR, "run " + name);
  if (::access(path.c_str(), X_OK) != 0) throw DoorError(errno, "run " + name);
  return std::filesystem::absolute(path);
}

DoorDescriptor memory_file(const char* name) {
  DoorDescriptor file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) throw DoorError(errno, "memfd_create");
  return file;
}

void copy_to_reply(int fd, DoorReply& reply) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) throw DoorError(errno, "read the answer");
  std::span<std::byte> room = reply.extend(static_cast<std::size_t>(size));
  off_t at = 0;
  while (!room.empty()) {
    const ssize_t part = ::pread(fd, room.data(), room.size(), at);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) throw DoorError(part < 0 ? errno : EIO, "read the answer");
    at += part;
    room = room.subspan(static_cast<std::size_t>(part));
  }
}

// What a command is started with: these files, no blocked signals, SIGCHLD not ignored (whatever
// who started the server did with it), and the caller's identity.
class Spawning {
 public:
  Spawning(int in, int out, const DoorCaller& caller)
      : variables_{fmt::format("FARCALL_CALLER_PID={}", caller.pid),
                   fmt::format("FARCALL_CALLER_UID={}", caller.effective_user),
                   fmt::format("FARCALL_CALLER_GID={}", caller.effective_group)} {
    for (char** variable = environ; *variable != nullptr; ++variable)
      if (!std::string_view(*variable).starts_with("FARCALL_CALLER_"))
        environment_.push_back(*variable);
    for (std::string& variable : variables_) environment_.push_back(variable.data());
    environment_.push_back(nullptr);
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_adddup2(&files_, in, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, out, STDOUT_FILENO);
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
  }
  Spawning(const Spawning&) = delete;
  Spawning& operator=(const Spawning&) = delete;
  ~Spawning() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&files_);
  }
  pid_t start(const std::string& program, const std::vector<std::string>& words) {
    pid_t pid = -1;
    const int error = ::posix_spawn(&pid, program.c_str(), &files_, &attributes_,
                                    process::arguments_of(words).data(), environment_.data());
    if (error != 0) throw DoorError(error, "run " + program);
    return pid;
  }

 private:
  std::vector<std::string> variables_;
  std::vector<char*> environment_;
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

class CommandServer {
 public:
  explicit CommandServer(const std::vector<std::string>& command)
      : program_(path_of(command.at(0))), command_(command) {}

  void serve(const DoorRequest& request, DoorReply& reply) {
    ++running_;
    try {
      run(request, reply);
    } catch (const std::exception& error) {
      say("farcall: {}\n", error.what());
      --running_;
      throw;  // the client gets EINTR
    }
    --running_;
  }
  [[nodiscard]] int running() const noexcept { return running_; }

 private:
  void run(const DoorRequest& request, DoorReply& reply) const {
    // Files rather than pipes: whatever the command does first, nobody waits for anybody.
    const DoorDescriptor in = memory_file("farcall-door-request");
    const DoorDescriptor out = memory_file("farcall-door-reply");
    {
      const FileSizeGuard guard;
      write_all(in.get(), request.data(), "write the request");
    }
    ::lseek(in.get(), 0, SEEK_SET);
    const pid_t pid =
        Spawning(in.get(), out.get(), DoorRequest::caller()).start(program_, command_);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
      if (errno != EINTR) throw DoorError(errno, "waitpid");
    copy_to_reply(out.get(), reply);
    if (status != 0) reply.give(make_status(status));
  }

  const std::string program_;
  const std::vector<std::string> command_;
  std::atomic<int> running_{0};
};

}  // namespace

int serve(const Serve& serve) {
  const EndSignals signals;
  // Never destroyed: threads may serve until the very end.
  static CommandServer* const server = new CommandServer(serve.command);
  Door door =
      Door::create([](DoorRequest& request, DoorReply& reply) { server->serve(request, reply); },
                   {.attributes = DOOR_REFUSE_DESC});
  std::optional<AttachedDoor> name(std::in_place, door, serve.path);

  signals.wait();
  name.reset();  // or it has been detached already: who removes the file does that
  door.revoke();
  // Commands that run may finish, unless a second signal comes.
  constexpr long kPollMs = 20;
  while (const int running = server->running()) {
    if (!signals.wait_ms(kPollMs)) continue;
    say("farcall: a second signal: {} not waited for\n",
        running == 1 ? "1 command that runs is" : fmt::format("{} commands that run are", running));
    return kFailure;
  }
  // Nobody says when a reply has been sent; it takes some microseconds.
  static_cast<void>(signals.wait_ms(5 * kPollMs));
  return kSuccess;
}

}  // namespace farcall::tool::door
