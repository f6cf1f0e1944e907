// SPDX-License-Identifier: Apache-2.0
#include "tool/run/launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compare/preload_library.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"
#include "memory/write_all.hpp"
#include "preload/settings.hpp"
#include "process/programs.hpp"
#include "tool/child_signal.hpp"
#include "tool/exit_code.hpp"
#include "tool/run/program.hpp"
#include "tool/run/statistics.hpp"
#include "tool/say.hpp"

namespace farcall::tool::run {
namespace {

bool complained = false;

// Of FARCALL_RING_SIZE="x" the user has written --ring-size x: each option has such a name.
void complain(const char* sentence) noexcept {
  constexpr std::string_view kPrefix = "FARCALL_";
  complained = true;
  std::string text = sentence;
  if (text.starts_with(kPrefix)) {
    text.replace(0, kPrefix.size(), "--");
    for (char& letter : text) {
      if (letter == '=') break;
      letter = letter == '_' ? '-' : static_cast<char>(std::tolower(letter));
    }
  }
  say("farcall: {}\n", text);
}

void set_variable(const std::string& name, const std::string& value) {
  if (::setenv(name.c_str(), value.c_str(), 1) != 0) throw_errno("setenv " + name);
}

// What the program's environment will ask of the library, read as the library reads it. An option
// of this command that cannot be used is an error, where a variable would be warned of.
std::optional<preload::Settings> apply(const Request& request) {
  std::vector<std::string> words;
  for (const auto& [name, value] : request.settings) words.push_back(name + "=" + value);
  std::vector<const char*> asked;
  for (const std::string& word : words) asked.push_back(word.c_str());
  asked.push_back(nullptr);
  complained = false;
  preload::read_settings(asked.data(), complain);
  if (complained) return std::nullopt;
  for (const auto& [name, value] : request.settings) set_variable(name, value);
  return preload::read_settings(environ, [](const char*) noexcept {});
}

[[noreturn]] void execute(const Program& program, const std::vector<std::string>& command) {
  const std::vector<char*> arguments = process::arguments_of(command);
  restore_child_signal();
  ::execv(program.path.c_str(), arguments.data());
  throw_errno("run " + program.path);
}

// The signals that this process hands on to the program while it waits for it.
class HandedOn {
 public:
  HandedOn() {
    ::sigemptyset(&set_);
    for (const int signal :
         {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH, SIGCHLD})
      ::sigaddset(&set_, signal);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  void restore() const noexcept { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // Returns the status of the child as waitpid() gives it.
  int wait(pid_t child) const {
    for (;;) {
      int status = 0;
      const pid_t ended = ::waitpid(child, &status, WNOHANG);
      if (ended == child) return status;
      if (ended < 0 && errno != EINTR) throw_errno("waitpid");
      siginfo_t info;
      const int signal = ::sigwaitinfo(&set_, &info);
      // The terminal sends to the whole group, so the program has what comes from there.
      if (signal > 0 && signal != SIGCHLD && info.si_code <= 0) ::kill(child, signal);
    }
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

// Opened before the program runs, so that it does not run in vain; what it had stays until the
// program has ended.
class StatisticsFile {
 public:
  explicit StatisticsFile(std::string path) : path_(std::move(path)) {
    constexpr mode_t kMode = 0666;  // less what umask says
    if (path_.empty()) return;
    file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, kMode));
    if (!file_) throw_errno("write " + path_);
  }
  // The program has run by now, and how it ended counts more than what is lost here.
  void write(std::string_view text) const noexcept {
    try {
      // What is no regular file has no length.
      if (::ftruncate(file_.get(), 0) != 0 && errno != EINVAL) throw_errno("write " + path_);
      write_all(file_.get(), std::as_bytes(std::span(text)), "write " + path_);
    } catch (const SystemError& error) {
      say("farcall: {}\n", error.what());
    }
  }

 private:
  std::string path_;
  UniqueFd file_;
};

void load_library() { set_variable("LD_PRELOAD", compare::preload_list(compare::find_library())); }

int run_and_report(const Request& request, const Program& program) {
  const Statistics statistics;
  const StatisticsFile file(request.stats_json);
  const int status = run_counted(request, program, statistics, false);
  if (request.stats) say("{}", statistics.text(request.command.front()));
  if (!request.stats_json.empty()) file.write(statistics.json());
  return exit_code_of(status);
}

std::string kinds_of(const preload::Settings& settings) {
  std::vector<const char*> kinds;
  if (settings.tcp) kinds.push_back("TCP");
  if (settings.udp) kinds.push_back("UDP");
  if (settings.unix_streams) kinds.push_back("unix sockets");
  return fmt::format("{}", fmt::join(kinds, ", "));
}

void list(const char* title, const preload::EndpointList& endpoints, const char* variable) {
  const char* const value = std::getenv(variable);
  if (endpoints.count != 0 && value != nullptr) fmt::print("{:<12}{}\n", title, value);
}

}  // namespace

int run_counted(const Request& request, const Program& program, const Statistics& statistics,
                bool to_error) {
  load_library();
  set_variable(preload::kStatsVariable, statistics.name());
  const HandedOn signals;
  const pid_t child = ::fork();
  if (child < 0) throw_errno("fork");
  if (child == 0) {
    signals.restore();
    if (to_error) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    try {
      execute(program, request.command);
    } catch (const std::exception& error) {
      say("farcall: {}\n", error.what());
    }
    ::_exit(kNotExecuted);
  }
  return signals.wait(child);
}

int launch(const Request& request) {
  if (!apply(request)) return kUsage;
  const Program program = examine(request.command.front());
  if (!program.refusal.empty()) {
    say("farcall: cannot accelerate: {}\n", program.refusal);
    return kFailure;
  }
  if (!program.reservation.empty()) say("farcall: {}: {}\n", program.path, program.reservation);
  if (request.stats || !request.stats_json.empty()) return run_and_report(request, program);
  load_library();
  execute(program, request.command);
}

int explain(const Request& request) {
  const auto settings = apply(request);
  if (!settings) return kUsage;
  const Program program = examine(request.command.front());
  fmt::print("{:<12}{}\n", "program", std::filesystem::absolute(program.path).string());
  if (!program.interpreter.empty())
    fmt::print("{:<12}{} (the program is a script)\n", "run by", program.interpreter);
  if (!program.refusal.empty()) {
    fmt::print("{:<12}{}\n", "refused", program.refusal);
    return kFailure;
  }
  fmt::print("{:<12}LD_PRELOAD={}\n", "sets", compare::preload_list(compare::find_library()));
  if (!program.reservation.empty()) fmt::print("{:<12}{}\n", "but", program.reservation);
  const std::string kinds = settings->enabled ? kinds_of(*settings) : "";
  if (kinds.empty()) {
    fmt::print("{:<12}nothing: the settings switch it off\n", "accelerates");
    return kSuccess;
  }
  constexpr const char* kUsers[] = {"the same user", "the same user or root", "any user"};
  fmt::print("{:<12}{} with processes of {} on this machine that run the library, too\n",
             "accelerates", kinds, kUsers[static_cast<std::size_t>(settings->uids)]);
  list("only", settings->accelerate, "FARCALL_ACCELERATE");
  list("except", settings->exclude, "FARCALL_EXCLUDE");
  fmt::print("{:<12}at most {} bytes for each direction of at most {} connections\n", "memory",
             settings->ring_bytes, settings->max_sockets);
  return kSuccess;
}

}  // namespace farcall::tool::run
