// SPDX-License-Identifier: Apache-2.0
//
// How a random program sends, receives and waits. Nothing here waits for what need not come: it is
// known in memory of both ends how much has been sent and read.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "preload/real.hpp"
#include "program.hpp"

namespace farcall::preload::test {
namespace {

// How much may be unread before a sender uses calls that block: what every socket holds.
constexpr std::uint64_t kSafeBytes = 20'000;
// Messages cost more than their bytes; most are no shorter than this.
constexpr std::uint64_t kSafeInMessages = 12'000;
constexpr std::uint64_t kLeastMessage = 300;
// The longest that is sent, and what it is read into.
constexpr std::uint64_t kMostMessage = 20'000;
constexpr int kPatience = 20'000;  // milliseconds

// The system call itself, as a runtime without the C library makes it.
template <class... Arguments>
int raw(long number, Arguments... arguments) {
  return static_cast<int>(with_errno(kernel(number, arguments...)));
}

std::uint64_t safe() { return mine->is_packets ? kSafeInMessages : kSafeBytes; }

// What has been sent and not read, as far as is known. Counted afterwards: it may be more.
std::uint64_t difference(std::uint64_t sent, std::uint64_t received) {
  return sent > received ? sent - received : 0;
}
std::uint64_t unread_by_other() { return difference(mine->sent, other->received); }
std::uint64_t waiting_for_me() { return difference(other->sent, mine->received); }

// Each program has habits of its own: two thirds of all that could be done.
bool does(unsigned habit) { return (mine->habits >> habit % 64 & 1) != 0; }

std::vector<char> bytes_from(std::uint64_t offset, std::size_t size) {
  std::vector<char> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = mine->byte_at(offset + i);
  return bytes;
}

void check(const char* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i)
    if (bytes[i] != other->byte_at(mine->received + i)) fail("a wrong byte");
}

// The kernel looks for packets and then for the end. A call that does not wait may so be told of
// the end where both came in between; the next call is not.
bool is_end(const char* what) {
  if (mine->received == other->total) return true;
  if (!mine->is_packets || mine->told_early.exchange(true)) fail(what);
  return false;
}

void came(const char* bytes, long size, const char* how) {
  trace("%s: %ld", how, size);
  if (size > 0) {
    if (bytes != nullptr) check(bytes, static_cast<std::size_t>(size));
    mine->received += static_cast<std::uint64_t>(size);
    if (mine->received > other->total) fail("more than was sent");
  } else if (size == 0) {
    if (is_end("the end came early")) mine->ended = true;
  } else if (errno != EAGAIN && errno != EINTR) {
    fail(how);
  }
}

// --- Sending -------------------------------------------------------------------------------------

ssize_t send_by_file(const std::vector<char>& bytes) {
  const int file = ::memfd_create("bytes", MFD_CLOEXEC);
  if (::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) fail("file");
  off_t from = 0;
  const ssize_t sent = ::sendfile(mine->fd, file, &from, bytes.size());
  const int error = errno;
  ::close(file);
  errno = error;
  return sent;
}

ssize_t send_by_splice(const std::vector<char>& bytes) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) fail("pipe");
  const ssize_t put = ::write(pipe[1], bytes.data(), std::min<std::size_t>(bytes.size(), 4096));
  const ssize_t sent =
      ::splice(pipe[0], nullptr, mine->fd, nullptr, static_cast<std::size_t>(put), 0);
  const int error = errno;
  ::close(pipe[0]);
  ::close(pipe[1]);
  errno = error;
  return sent;
}

ssize_t send_by_many(std::vector<char>& bytes) {
  mmsghdr messages[3]{};
  iovec parts[3];
  const std::size_t third = bytes.size() / 3;
  for (std::size_t i = 0; i < 3; ++i) {
    parts[i] = {bytes.data() + i * third, i == 2 ? bytes.size() - 2 * third : third};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int count = ::sendmmsg(mine->fd, messages, 3, MSG_NOSIGNAL);
  if (count < 0) return -1;
  ssize_t sent = 0;
  for (int i = 0; i < count; ++i) sent += messages[i].msg_len;
  // Where a message was sent in part, those behind it must not follow.
  for (int i = 0; i + 1 < count; ++i)
    if (messages[i].msg_len != parts[i].iov_len) fail("a part, and then more");
  return sent;
}

ssize_t send_by_stdio(const std::vector<char>& bytes) {
  FILE* file = ::fdopen(::dup(mine->fd), "w");
  if (file == nullptr) fail("fdopen");
  const std::size_t put = std::fwrite(bytes.data(), 1, bytes.size(), file);
  if (put != bytes.size() || std::fclose(file) != 0) fail("stdio");
  return static_cast<ssize_t>(put);
}

ssize_t send_by_cat(const std::vector<char>& bytes) {
  const int file = ::memfd_create("bytes", MFD_CLOEXEC);
  if (::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) fail("file");
  ::lseek(file, 0, SEEK_SET);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, file, 0);
  ::posix_spawn_file_actions_adddup2(&actions, mine->fd, 1);
  const char* const words[] = {"cat", nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, "cat", &actions, nullptr, const_cast<char**>(words), environ) != 0)
    fail("posix_spawnp");
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(file);
  wait_for(child);
  return static_cast<ssize_t>(bytes.size());
}

bool is_blocking() { return (::fcntl(mine->fd, F_GETFL) & O_NONBLOCK) == 0; }

void send_something() {
  const std::uint64_t left = mine->total - mine->sent;
  const std::uint64_t sizes[] = {1, 100, 2000, 2000, 20'000, 100'000};
  std::uint64_t size = 1 + pick(sizes[pick(6)]);
  if (mine->is_packets) size = std::clamp(size, kLeastMessage, kMostMessage);
  size = std::min(size, left);
  const std::uint64_t unread = unread_by_other();
  bool blocking = is_blocking();
  const bool may_block = unread < safe();
  if (may_block) size = std::min(size, safe() - unread);
  if (blocking && !may_block) {
    ::fcntl(mine->fd, F_SETFL, ::fcntl(mine->fd, F_GETFL) | O_NONBLOCK);
    blocking = false;
  }
  std::vector<char> bytes = bytes_from(mine->sent, size);
  const std::size_t cut = pick(size + 1);
  iovec parts[3] = {{bytes.data(), cut}, {nullptr, 0}, {bytes.data() + cut, size - cut}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  const int more = mine->is_tcp && size < left && one_in(10) ? MSG_MORE : 0;
  const bool whole = may_block && blocking && !mine->interrupted;
  std::uint64_t way = pick(whole ? 24 : 18);
  if (!does(static_cast<unsigned>(way))) way = 17;
  // A message of no bytes would look like the end.
  if (way == 5 && mine->is_packets && size < 3) way = 17;
  ssize_t sent = 0;
  switch (way) {
    case 1: sent = ::writev(mine->fd, parts, 3); break;
    case 2: sent = ::sendmsg(mine->fd, &message, MSG_NOSIGNAL | more); break;
    case 3: sent = send_by_file(bytes); break;
    case 4: sent = send_by_splice(bytes); break;
    case 5: sent = send_by_many(bytes); break;
    case 6: sent = ::sendto(mine->fd, bytes.data(), size, MSG_NOSIGNAL, nullptr, 0); break;
    case 18: sent = send_by_stdio(bytes); break;
    case 19: sent = size < 500 ? send_by_cat(bytes) : ::write(mine->fd, bytes.data(), size); break;
    case 20: sent = ::dprintf(mine->fd, "%.*s", static_cast<int>(size), bytes.data()); break;
    default:
      sent = pick(2) == 0 ? ::write(mine->fd, bytes.data(), size)
                          : ::send(mine->fd, bytes.data(), size, MSG_NOSIGNAL | more);
  }
  const int error = errno;
  if (sent > 0) mine->sent += static_cast<std::uint64_t>(sent);
  trace("send %llu by %llu: %ld", static_cast<unsigned long long>(size),
        static_cast<unsigned long long>(way), static_cast<long>(sent));
  errno = error;
  if (sent < 0 && error != EAGAIN && error != EINTR) fail("send");
}

// --- Receiving -----------------------------------------------------------------------------------

void receive_by_splice(std::size_t size) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) fail("pipe");
  char buffer[4096];
  const ssize_t moved = ::splice(mine->fd, nullptr, pipe[1], nullptr, std::min(size, sizeof buffer),
                                 SPLICE_F_NONBLOCK);
  if (moved > 0 && ::read(pipe[0], buffer, static_cast<std::size_t>(moved)) != moved) fail("pipe");
  came(buffer, moved, "splice");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

void receive_by_many(char* buffer, std::size_t size) {
  mmsghdr messages[2]{};
  const std::size_t half = (size + 1) / 2;
  iovec parts[2] = {{buffer, half}, {buffer + half, size - half + 1}};
  for (std::size_t i = 0; i < 2; ++i) {
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int count = ::recvmmsg(mine->fd, messages, 2, MSG_DONTWAIT, nullptr);
  if (count <= 0) return came(nullptr, -1, "recvmmsg");
  for (int i = 0; i < count && !mine->ended; ++i)
    came(static_cast<char*>(parts[i].iov_base), messages[i].msg_len, "recvmmsg");
}

void peek(char* buffer, std::size_t size) {
  const ssize_t seen = ::recv(mine->fd, buffer, size, MSG_PEEK | MSG_DONTWAIT);
  trace("peek %zu: %zd", size, seen);
  if (seen > 0) check(buffer, static_cast<std::size_t>(seen));
  if (seen == 0) is_end("the end came early, peeking");
}

void count_unread() {
  int count = 0;
  if (::ioctl(mine->fd, FIONREAD, &count) != 0 || count < 0) fail("FIONREAD");
  if (mine->received + static_cast<std::uint64_t>(count) > other->total) fail("FIONREAD: too much");
}

// What may wait does so only for what is there or must come.
void receive_something(bool certain) {
  const std::uint64_t sizes[] = {1, 100, 5000, 5000, 70'000, 200'000};
  std::vector<char> buffer(mine->is_packets ? 3 * kMostMessage : 1 + pick(sizes[pick(6)]) + 1);
  const std::size_t size = buffer.size() - 1;
  char* data = buffer.data();
  const bool blocking = is_blocking();
  const int now = blocking && !certain ? MSG_DONTWAIT : 0;
  iovec parts[2] = {{data, size / 2}, {data + size / 2, size - size / 2}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const bool calls_wait = blocking && !certain;
  const std::uint64_t way = pick(16);
  switch (does(24 + static_cast<unsigned>(way)) ? way : 15) {
    case 0: return peek(data, size);
    case 1: return count_unread();
    case 2:
      if (calls_wait || mine->is_packets) break;
      return receive_by_splice(size);
    case 3: return receive_by_many(data, size - 1 + (size == 1));
    case 6: return came(data, ::recvmsg(mine->fd, &message, now), "recvmsg");
    case 7:
      if (calls_wait) break;
      return came(data, ::readv(mine->fd, parts, 2), "readv");
    case 8: {
      const std::size_t all = std::min<std::uint64_t>(size, waiting_for_me());
      if (!certain || !blocking || all == 0 || mine->is_packets) break;
      const ssize_t got = ::recv(mine->fd, data, all, MSG_WAITALL);
      return came(data, got, "recv all");
    }
    case 9:
      if (!mine->is_tcp) break;
      return came(nullptr, ::recv(mine->fd, data, size, MSG_TRUNC | now), "discard");
    default: break;
  }
  if (calls_wait || pick(2) == 0) return came(data, ::recv(mine->fd, data, size, now), "recv");
  came(data, ::read(mine->fd, data, size), "read");
}

// --- Waiting -------------------------------------------------------------------------------------

int wait_by_poll(short events, int limit, std::uint64_t way) {
  pollfd wait{.fd = mine->fd, .events = events, .revents = 0};
  const timespec time{.tv_sec = limit / 1000, .tv_nsec = limit % 1000 * 1'000'000};
  timespec scratch = time;
  if (mine->waits_raw) return raw(SYS_ppoll, &wait, 1, &scratch, 0, 8);
  return way % 3 == 0 ? ::poll(&wait, 1, limit) : ::ppoll(&wait, 1, &time, nullptr);
}

int wait_by_select(short events, int limit) {
  if (mine->fd >= FD_SETSIZE || mine->waits_raw) return wait_by_poll(events, limit, 0);
  fd_set read, write;
  FD_ZERO(&read);
  FD_ZERO(&write);
  if ((events & POLLIN) != 0) FD_SET(mine->fd, &read);
  if ((events & POLLOUT) != 0) FD_SET(mine->fd, &write);
  timeval time{.tv_sec = limit / 1000, .tv_usec = limit % 1000 * 1000};
  return ::select(mine->fd + 1, &read, &write, nullptr, &time);
}

int wait_by_epoll(short events, int limit, std::uint64_t way) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  const int copy = way % 2 == 0 ? -1 : ::fcntl(set, F_DUPFD_CLOEXEC, 50);
  const int named = copy >= 0 ? copy : set;
  epoll_event wanted{.events = ((events & POLLIN) != 0 ? EPOLLIN : 0U) |
                               ((events & POLLOUT) != 0 ? EPOLLOUT : 0U) |
                               (way % 3 == 0 ? EPOLLET : 0U) | (way % 5 == 0 ? EPOLLONESHOT : 0U),
                     .data = {.u64 = 77}};
  if (::epoll_ctl(named, EPOLL_CTL_ADD, mine->fd, &wanted) != 0) fail("epoll_ctl");
  epoll_event event{};
  int ready = 0;
  if (mine->waits_raw)
    ready = raw(SYS_epoll_pwait, set, &event, 1, limit, 0, 8);
  else
    ready = ::epoll_wait(set, &event, 1, limit);
  if (ready == 1 && event.data.u64 != 77) fail("epoll's data");
  const int error = errno;
  ::close(set);
  if (copy >= 0) ::close(copy);
  errno = error;
  return ready;
}

// A set that is kept, and inherited by what is forked.
int wait_by_kept_set(short events, int limit) {
  static int set = -1;
  static int member = -1;
  epoll_event wanted{
      .events = ((events & POLLIN) != 0 ? EPOLLIN : 0U) | ((events & POLLOUT) != 0 ? EPOLLOUT : 0U),
      .data = {.u64 = 78}};
  if (set < 0 || member != mine->fd) {
    if (set >= 0) ::close(set);
    set = ::epoll_create1(EPOLL_CLOEXEC);
    member = mine->fd;
    if (::epoll_ctl(set, EPOLL_CTL_ADD, mine->fd, &wanted) != 0) fail("epoll_ctl");
  } else if (::epoll_ctl(set, EPOLL_CTL_MOD, mine->fd, &wanted) != 0) {
    // Whoever has closed the descriptor and opened it again under its number.
    if (errno != ENOENT || ::epoll_ctl(set, EPOLL_CTL_ADD, mine->fd, &wanted) != 0)
      fail("epoll_ctl, modify");
  }
  epoll_event event{};
  if (mine->waits_raw) return raw(SYS_epoll_pwait, set, &event, 1, limit, 0, 8);
  return ::epoll_wait(set, &event, 1, limit);
}

// True: ready.
bool wait_until_ready(short events, int limit) {
  const std::uint64_t way = pick(1000);
  const auto begin = std::chrono::steady_clock::now();
  int ready = 0;
  const std::uint64_t kind = pick(6);
  switch (does(40 + static_cast<unsigned>(kind)) ? kind : 5) {
    case 0: ready = wait_by_select(events, limit); break;
    case 1: ready = wait_by_epoll(events, limit, way); break;
    case 2: ready = wait_by_kept_set(events, limit); break;
    default: ready = wait_by_poll(events, limit, way);
  }
  trace("wait %d%s for %x, at most %d ms: %d", static_cast<int>(way), mine->waits_raw ? " raw" : "",
        events, limit, ready);
  if (ready < 0 && errno != EINTR) fail("wait");
  if (ready == 0 && limit == kPatience) fail("waited in vain");
  if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(limit + kPatience / 2))
    fail("waited far too long");
  return ready > 0;
}

bool peer_must_send() {
  // Who accepts never waits for more than has been sent, so who connects may.
  return mine->name == 'c' || mine->shut;
}

void read_a_little() {
  const bool certain = mine->received == other->total ? other->shut.load() : waiting_for_me() > 0;
  if (one_in(3)) {
    if (certain || peer_must_send()) {
      if (!wait_until_ready(POLLIN, kPatience)) return;
    } else {
      wait_until_ready(POLLIN, static_cast<int>(pick(4)));
    }
  }
  // Who waits by system calls of its own does so always.
  receive_something(certain && !mine->waits_raw);
}

}  // namespace

void transfer() {
  const bool writes = !mine->shut;
  if (writes && mine->sent == mine->total) {
    trace("shutdown");
    if (::shutdown(mine->fd, SHUT_WR) != 0) fail("shutdown");
    mine->shut = true;
    return;
  }
  if (writes && (mine->ended || pick(2) == 0)) {
    send_something();
    if (mine->ended || !one_in(4)) return;
    if (unread_by_other() >= safe()) wait_until_ready(POLLIN | POLLOUT, kPatience);
  } else if (!mine->ended) {
    read_a_little();
  }
}

}  // namespace farcall::preload::test
