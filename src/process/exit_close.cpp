// SPDX-License-Identifier: Apache-2.0
#include "process/exit_close.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "process/per_process.hpp"

namespace farcall::process {
namespace {

constexpr std::size_t kMostDescriptors = 253;  // of a message: SCM_MAX_FD
constexpr std::size_t kMostMessages = 8;       // the kernel lets a queue have ten

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof bytes;

  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&bytes); }
  // The kernel chooses the name.
  [[nodiscard]] bool bind(int socket) noexcept {
    bytes.ss_family = AF_UNIX;
    size = sizeof bytes;
    return ::bind(socket, get(), sizeof(sa_family_t)) == 0 &&
           ::getsockname(socket, get(), &size) == 0;
  }
};

int datagram_socket() noexcept { return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); }

// Room for the descriptors of a message; not through functions that are points of cancellation.
class Message {
 public:
  Message() noexcept {
    header_.msg_iov = &piece_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  bool send(int socket, Address& to, std::span<const int> numbers) noexcept {
    header_.msg_name = to.get();
    header_.msg_namelen = to.size;
    header_.msg_controllen = CMSG_SPACE(numbers.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(numbers.size_bytes());
    std::memcpy(CMSG_DATA(rights), numbers.data(), numbers.size_bytes());
    return ::syscall(SYS_sendmsg, socket, &header_, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  }
  // How many descriptors have come.
  std::size_t receive(int socket) noexcept {
    if (::syscall(SYS_recvmsg, socket, &header_, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return 0;
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return 0;
    return (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  }

 private:
  char byte_ = 0;
  iovec piece_{.iov_base = &byte_, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control_{};
  msghdr header_{};
};

// A table of its own has the lowest numbers in it at first, as the kernel copies 64 at a time. To
// close such a copy takes as long as its file likes, which may be a peer's.
constexpr unsigned kCopied = 64;
constexpr auto kLongestBeginning = std::chrono::seconds(1);
constexpr int kMostBeginning = 4;
struct Beginning {
  std::atomic<int> threads{0};
};
std::atomic<int>& beginning() { return PerProcess<Beginning>::here().threads; }

enum class Stage : int { begun, listening, sent, taken, closed, refused };

struct Batch {
  std::vector<int> numbers;
  Address sender, receiver;

  void reach(Stage next) {
    {
      const std::lock_guard guard(lock_);
      stage_ = std::max(stage_, next);  // refused it stays
    }
    changed_.notify_one();
  }
  Stage await_beyond(Stage before) {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return stage_ > before; });
    return stage_;
  }
  // The same of the beginning, but not without end: refused.
  Stage await_beginning() {
    const auto until = std::chrono::system_clock::now() + kLongestBeginning;
    std::unique_lock guard(lock_);
    if (!changed_.wait_until(guard, until, [&] { return stage_ > Stage::begun; }))
      stage_ = Stage::refused;
    return stage_;
  }

 private:
  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  Stage stage_ = Stage::begun;
};

// Whether somebody may be asked when a copy of it is closed, as FUSE's servers are: of a file that
// is on no block device. Nobody is asked for this. Where it cannot be told, yes.
bool asks_when_closed(unsigned fd) noexcept {
  struct statx status {};
  constexpr int kQuietly = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  if (::syscall(SYS_statx, fd, "", kQuietly, STATX_TYPE, &status) != 0) return errno != EBADF;
  return (S_ISREG(status.stx_mode) || S_ISDIR(status.stx_mode)) && status.stx_dev_major == 0;
}

// A table of the calling thread's own, with nothing in it. Who waits for the end of one of the
// program's pipes, or for a lock, waits for the copy as well: peers' files, which may be long in
// closing, come last, and of each those last that may be. (POSIX locks are the other table's.)
bool leave_table() noexcept {
  std::array<bool, kCopied> of_peer{};
  std::array<bool, kCopied> closed{};
  const auto look = [&of_peer] {
    for (unsigned fd = 0; fd < kCopied; ++fd)
      if (is_of_peer(static_cast<int>(fd))) of_peer[fd] = true;
  };
  look();  // they may be closed meanwhile
  if (::syscall(SYS_close_range, kCopied, ~0U, CLOSE_RANGE_UNSHARE) != 0) return false;
  for (const bool peers : {false, true}) {
    for (const bool asking : {false, true}) {
      look();  // some may have come just before
      for (unsigned fd = 0; fd < kCopied; ++fd) {
        if (closed[fd] || (!peers && of_peer[fd]) || (!asking && asks_when_closed(fd))) continue;
        ::syscall(SYS_close, fd);
        closed[fd] = true;
      }
    }
  }
  return true;
}

// On a thread that ends afterwards, and with it what it has taken.
void take_and_end(Batch& batch) {
  const bool alone = leave_table();
  beginning().fetch_sub(1, std::memory_order_relaxed);
  if (!alone) return batch.reach(Stage::refused);
  // Connected before it has a name: nobody else can send to it.
  const int inbox = datagram_socket();
  if (inbox < 0 || ::connect(inbox, batch.sender.get(), batch.sender.size) != 0 ||
      !batch.receiver.bind(inbox))
    return batch.reach(Stage::refused);
  batch.reach(Stage::listening);
  if (batch.await_beyond(Stage::listening) != Stage::sent) return;
  std::size_t taken = 0;
  while (const std::size_t more = Message().receive(inbox)) taken += more;
  const bool all = taken == batch.numbers.size();
  batch.reach(all ? Stage::taken : Stage::refused);
  if (all) (void)batch.await_beyond(Stage::taken);
}

bool send_all(int outbox, Batch& batch) noexcept {
  for (std::span<const int> left = batch.numbers; !left.empty();) {
    const auto now = left.first(std::min(left.size(), kMostDescriptors));
    if (!Message().send(outbox, batch.receiver, now)) return false;
    left = left.subspan(now.size());
  }
  return true;
}

bool close_some(std::list<PrivateFd>& sockets) {
  auto batch = std::make_shared<Batch>();
  for (const PrivateFd& socket : sockets) batch->numbers.push_back(socket.get());
  // Shut down before it has a name: what others leave in it would be closed with it.
  const PrivateFd outbox{UniqueFd(datagram_socket())};
  if (!outbox || ::shutdown(outbox.get(), SHUT_RD) != 0 || !batch->sender.bind(outbox.get()))
    return false;
  auto theirs = std::make_unique<std::shared_ptr<Batch>>(batch);
  const auto run = [](void* given) {
    const std::unique_ptr<std::shared_ptr<Batch>> mine(static_cast<std::shared_ptr<Batch>*>(given));
    take_and_end(**mine);
  };
  if (beginning().fetch_add(1, std::memory_order_relaxed) >= kMostBeginning ||
      start_thread("farcall-exit", run, theirs.get()) != 0) {
    beginning().fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  (void)theirs.release();
  if (batch->await_beginning() != Stage::listening) return false;
  batch->reach(send_all(outbox.get(), *batch) ? Stage::sent : Stage::refused);
  if (batch->await_beyond(Stage::sent) != Stage::taken) return false;
  sockets.clear();
  batch->reach(Stage::closed);
  return true;
}

}  // namespace

bool close_by_exit(std::list<PrivateFd>& sockets) noexcept {
  try {
    while (!sockets.empty()) {
      std::list<PrivateFd> some;
      const auto count = std::min(sockets.size(), kMostDescriptors * kMostMessages);
      some.splice(some.end(), sockets, sockets.begin(),
                  std::next(sockets.begin(), static_cast<std::ptrdiff_t>(count)));
      if (!close_some(some)) {
        sockets.splice(sockets.begin(), some);
        return false;
      }
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace farcall::process
