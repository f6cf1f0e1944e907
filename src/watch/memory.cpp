// SPDX-License-Identifier: Apache-2.0
#include "watch/memory.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "farcall/memory.hpp"
#include "watch/act_as.hpp"

namespace farcall::watch {
namespace {

using Clock = std::chrono::steady_clock;

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{1};  // with a process, where the reader is not short of a processor
constexpr seconds kLongPatience{10};
constexpr seconds kSilence{60};  // so long nobody asks it again
// What readers have waited, beyond what any read may take, is a debt of the process's user and of
// all together, of which a tenth of the time that passes is paid back. Who owes more is not asked.
constexpr milliseconds kQuick{20};
constexpr seconds kMostOfUser{2};
constexpr seconds kMostOfAll{6};
constexpr int kPaidBack = 10;
constexpr std::size_t kMostStuck = 16;  // readers that were left behind
constexpr std::size_t kMostPlaces = 512;
constexpr std::size_t kRoom = std::size_t{8} << 20;

ssize_t read_or_write(bool writes, pid_t pid, void* here, std::size_t size,
                      std::span<const iovec> there) noexcept {
  const iovec local{.iov_base = here, .iov_len = size};
  return writes ? ::process_vm_writev(pid, &local, 1, there.data(), there.size(), 0)
                : ::process_vm_readv(pid, &local, 1, there.data(), there.size(), 0);
}

int open_text(pid_t pid, ProcFile file) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, file == ProcFile::maps ? "maps" : "environ");
  return ::open(path, O_RDONLY | O_CLOEXEC);
}

// As much of the file as there is room for, or -1.
ssize_t read_file(pid_t pid, ProcFile file, std::span<char> into) noexcept {
  const int fd = open_text(pid, file);
  if (fd < 0) return -1;
  std::size_t size = 0;
  ssize_t got = 1;
  while (size < into.size() && (got = ::read(fd, into.data() + size, into.size() - size)) > 0)
    size += static_cast<std::size_t>(got);
  const int error = errno;
  ::close(fd);
  errno = error;
  return got < 0 ? -1 : static_cast<ssize_t>(size);
}

// What the two processes share.
struct Desk {
  enum class What : std::uint8_t { read, write, text } what;
  ProcFile file;
  Rights rights;
  Owner of;
  std::size_t size;
  std::size_t places;
  std::array<iovec, kMostPlaces> there;
  ssize_t result;
  int error;
  alignas(64) std::array<char, kRoom> data;
};

void serve_one(Desk& desk) noexcept {
  const bool own = desk.rights == Rights::own;
  const ActAs user(own ? ::geteuid() : desk.of.user, own ? ::getegid() : desk.of.group);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // which a change of the user has cleared
  errno = EPERM;
  desk.result = -1;
  if (user && desk.what == Desk::What::text)
    desk.result = read_file(desk.of.pid, desk.file, desk.data);
  else if (user)
    desk.result = read_or_write(desk.what == Desk::What::write, desk.of.pid, desk.data.data(),
                                desk.size, std::span(desk.there).first(desk.places));
  desk.error = errno;
}

// Holds nothing that somebody might wait for, should it have to be left behind.
[[noreturn]] void serve(Desk& desk, int socket) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // a job that is stopped and goes on is the other one
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM})
    ::signal(signal, SIG_IGN);  // they are for the other one
  const int nothing = ::open("/dev/null", O_RDWR);
  if (socket < 3) socket = ::fcntl(socket, F_DUPFD, 3);
  for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
  ::dup2(socket, 3);
  ::syscall(SYS_close_range, 4U, ~0U, 0U);
  char byte = 0;
  // The first one says that it is there.
  while (::send(3, &byte, 1, MSG_NOSIGNAL) == 1 && ::recv(3, &byte, 1, 0) == 1) serve_one(desk);
  ::_exit(0);
}

// The process that reads in our place.
class Reader {
 public:
  Reader() {
    void* const memory = ::mmap(nullptr, sizeof(Desk), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int ends[2];
    if (memory == MAP_FAILED) return;
    desk_ = Mapping(memory, sizeof(Desk));
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    const UniqueFd mine(ends[0]);
    const UniqueFd theirs(ends[1]);
    // Not where others would write what they say.
    socket_ = UniqueFd(::fcntl(mine.get(), F_DUPFD_CLOEXEC, 3));
    if (!socket_) return;
    pid_ = ::fork();
    if (pid_ == 0) serve(desk(), theirs.get());
    if (pid_ > 0) state_ = await(kLongPatience) ? State::answers : State::dead;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  // It ends with its socket; one that is stuck, when the kernel lets it.
  ~Reader() {
    socket_.reset();
    if (pid_ <= 0 || state_ == State::stuck) return;
    if (state_ == State::dead) ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  explicit operator bool() const noexcept { return state_ == State::answers; }
  // Gives up on it: whose process it is to be waited for.
  pid_t leave() noexcept {
    ::kill(pid_, SIGKILL);
    state_ = State::stuck;
    return pid_;
  }
  [[nodiscard]] Desk& desk() const noexcept { return *reinterpret_cast<Desk*>(desk_.data()); }

  enum class State : std::uint8_t { answers, stuck, dead };
  // Has done what stands on the desk.
  State ask() {
    const char byte = 0;
    if (::send(socket_.get(), &byte, 1, MSG_NOSIGNAL) != 1) return state_ = State::dead;
    bool answered = await(kPatience);
    // One that has had no processor has not been kept waiting by anybody.
    for (const auto until = Clock::now() + kLongPatience;
         !answered && state_ == State::answers && Clock::now() < until && is_runnable();)
      answered = await(milliseconds(100));
    if (!answered && state_ == State::answers) state_ = State::stuck;
    return state_;
  }

 private:
  // Its next byte; a socket that has ended makes it `dead`.
  bool await(Clock::duration patience) {
    const auto until = Clock::now() + patience;
    pollfd wanted{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
      const int ready = ::poll(&wanted, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, 0) == 1) return true;
      state_ = State::dead;
      return false;
    }
  }
  [[nodiscard]] bool is_runnable() const noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/stat", pid_);
    const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    std::array<char, 512> text{};
    if (!file || ::read(file.get(), text.data(), text.size() - 1) <= 0) return false;
    const char* const behind = std::strrchr(text.data(), ')');
    return behind != nullptr && behind[1] == ' ' && (behind[2] == 'R' || behind[2] == 'T');
  }

  Mapping desk_;
  UniqueFd socket_;
  pid_t pid_ = -1;
  State state_ = State::dead;
};

// Waited for, and paid back as time goes by.
class Debt {
 public:
  void add(Clock::duration waited) {
    owed_ = now_owed() + waited;
    since_ = Clock::now();
  }
  [[nodiscard]] Clock::duration now_owed() const {
    const Clock::duration paid = (Clock::now() - since_) / kPaidBack;
    return owed_ > paid ? owed_ - paid : Clock::duration::zero();
  }

 private:
  Clock::duration owed_{};
  Clock::time_point since_{};
};

class Foreign {
 public:
  static Foreign& here() {
    static Foreign only;
    return only;
  }
  struct Request {
    Desk::What what;
    Owner of;
    std::span<const iovec> there = {};
    std::size_t size = 0;
    const void* data = nullptr;  // what is written
    ProcFile file{};
    Rights rights{};
  };
  // -1 with errno, or what the call has returned; then `take` gets the desk.
  template <class Take>
  ssize_t ask(const Request& request, Take take) {
    const std::lock_guard guard(lock_);
    if (is_silent(request.of)) return fail(ETIMEDOUT);
    if (request.size > kRoom || request.there.size() > kMostPlaces) return fail(EINVAL);
    if (owner_ != ::getpid()) (void)reader_.release();  // a forked child's parent's
    owner_ = ::getpid();
    for (bool again = false;; again = true) {
      if (!reader_) reader_ = std::make_unique<Reader>();
      if (!*reader_) break;
      const auto began = Clock::now();
      put(request, reader_->desk());
      const Reader::State state = reader_->ask();
      if (const auto waited = Clock::now() - began; waited > kQuick) {
        all_.add(waited);
        of_user_[request.of.user].add(waited);
      }
      if (state == Reader::State::answers) return taken(take);
      if (state == Reader::State::stuck) {
        silent_[request.of.pid] = Clock::now() + kSilence;
        stuck_.push_back(reader_->leave());
      }
      reader_.reset();
      if (state == Reader::State::stuck) return fail(ETIMEDOUT);
      if (again) break;  // somebody ends our readers
    }
    reader_.reset();
    return fail(EAGAIN);
  }

 private:
  template <class Take>
  ssize_t taken(Take take) {
    const Desk& desk = reader_->desk();
    if (desk.result < 0) return fail(desk.error);
    take(desk);
    return desk.result;
  }
  static void put(const Request& request, Desk& desk) noexcept {
    desk.what = request.what;
    desk.file = request.file;
    desk.rights = request.rights;
    desk.of = request.of;
    desk.size = request.size;
    desk.places = request.there.size();
    std::ranges::copy(request.there, desk.there.begin());
    if (request.data != nullptr) std::memcpy(desk.data.data(), request.data, request.size);
  }
  static ssize_t fail(int error) noexcept {
    errno = error;
    return -1;
  }
  bool is_silent(const Owner& of) {
    std::erase_if(stuck_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == pid; });
    if (stuck_.size() >= kMostStuck || all_.now_owed() > kMostOfAll) return true;
    if (const auto user = of_user_.find(of.user);
        user != of_user_.end() && user->second.now_owed() > kMostOfUser)
      return true;
    const auto known = silent_.find(of.pid);
    if (known == silent_.end()) return false;
    if (Clock::now() < known->second) return true;
    silent_.erase(known);
    return false;
  }

  std::mutex lock_;
  std::unique_ptr<Reader> reader_;
  pid_t owner_ = 0;
  std::map<pid_t, Clock::time_point> silent_;  // until then
  std::map<uid_t, Debt> of_user_;
  Debt all_;
  std::vector<pid_t> stuck_;
};

// Who may not mean well, and whom we may look at all the same.
bool is_foreign(const Owner& of) noexcept { return ::geteuid() == 0 && of.user != 0; }

}  // namespace

bool read_memory(const Owner& of, std::span<const iovec> there, void* into, std::size_t size) {
  if (!is_foreign(of))
    return read_or_write(false, of.pid, into, size, there) == static_cast<ssize_t>(size);
  const auto take = [&](const Desk& desk) {
    std::memcpy(into, desk.data.data(), std::min(static_cast<std::size_t>(desk.result), size));
  };
  return Foreign::here().ask({.what = Desk::What::read, .of = of, .there = there, .size = size},
                             take) == static_cast<ssize_t>(size);
}

std::size_t write_memory(const Owner& of, std::span<const iovec> there, const void* from,
                         std::size_t size) {
  const ssize_t put =
      is_foreign(of)
          ? Foreign::here().ask(
                {.what = Desk::What::write, .of = of, .there = there, .size = size, .data = from},
                [](const Desk&) {})
          : read_or_write(true, of.pid, const_cast<void*>(from), size, there);
  return put > 0 ? static_cast<std::size_t>(put) : 0;
}

int read_text(const Owner& of, ProcFile file, std::string& into, Rights rights) {
  constexpr std::size_t kMost = std::size_t{64} << 20;
  into.clear();
  if (is_foreign(of)) {
    const auto take = [&](const Desk& desk) {
      into.assign(desk.data.data(), static_cast<std::size_t>(desk.result));
    };
    return Foreign::here().ask({.what = Desk::What::text, .of = of, .file = file, .rights = rights},
                               take) < 0
               ? errno
               : 0;
  }
  const UniqueFd opened(open_text(of.pid, file));
  if (!opened) return errno;
  std::array<char, 65'536> some;
  ssize_t got = 0;
  while (into.size() < kMost && (got = ::read(opened.get(), some.data(), some.size())) > 0)
    into.append(some.data(), static_cast<std::size_t>(got));
  return got < 0 ? errno : 0;
}

}  // namespace farcall::watch
