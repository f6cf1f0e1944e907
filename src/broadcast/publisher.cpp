// SPDX-License-Identifier: Apache-2.0
//
// The writer has a list of its readers of its own, which it looks through without a lock. The list
// that counts changes under one: readers come and go on other threads (the reactor's, or of who
// invites them). Whenever it has changed the writer takes a copy before it goes on. What may be
// written over is decided under the lock, too, so that nobody begins where it was just given up.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <vector>

#include "broadcast/publishing.hpp"
#include "broadcast/welcome.hpp"
#include "farcall/broadcast.hpp"
#include "farcall/error.hpp"
#include "farcall/ring/memory.hpp"
#include "farcall/socket.hpp"
#include "memory/standard_streams.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"
#include "process/reactor.hpp"
#include "socket/acceptor.hpp"
#include "socket/doorbells.hpp"

namespace farcall {
namespace broadcast {
namespace {

// One reader, as the writer has it.
struct Reader {
  explicit Reader(WaitMode mode, process::PrivateFd socket)
      : lifeline(std::move(socket)),
        page(SharedMemory::create(page_size(), "farcall-reader")),
        mapping(page.map()),
        waiter(lifeline.get(), mode, kDoorbells) {}

  [[nodiscard]] RingControl& control() const noexcept {
    return *reinterpret_cast<RingControl*>(mapping.data());
  }
  // How far it has read. One that has not begun has read what it can do without, where that is
  // below `needed`, and it is to be dropped rather than waited for.
  [[nodiscard]] std::uint64_t read_by(bool drops, std::uint64_t needed) noexcept {
    std::atomic<std::uint64_t>& head = control().head.value;
    // acquire: pairs with the release in Subscriber: it has copied what lies before.
    std::uint64_t found = head.load(std::memory_order_acquire);
    const std::uint64_t not_begun = oldest.position | kNotBegun;
    if (found == not_begun && drops && oldest.position < needed &&
        head.compare_exchange_strong(found, newest.position | kNotBegun, std::memory_order_acquire))
      return newest.position;
    return found & ~kNotBegun;
  }
  // It ends there, for what `state` says, and is woken to see it.
  void end(std::uint32_t state) noexcept {
    // release: pairs with the acquire in Waiter::gone; all messages are visible before the end.
    control().writer.state.store(state, std::memory_order_release);
    Waiter(lifeline.get()).wake(control().writer, control().reader);
    ::shutdown(lifeline.get(), SHUT_WR);
  }

  DoorbellSocket lifeline;
  SharedMemory page;
  Mapping mapping;
  Waiter waiter;          // the writer's
  BroadcastPlace oldest;  // with which it may begin
  BroadcastPlace newest;
  std::uint64_t read = 0;  // as last seen, and believed
  process::Registration watch;
};
using ReaderPointer = std::shared_ptr<Reader>;

}  // namespace

class PublisherState : public std::enable_shared_from_this<PublisherState> {
 public:
  explicit PublisherState(const Publisher::Options& options)
      : options_(options),
        memory_(BroadcastMemory::create(ring_capacity(options.capacity))),
        ring_(memory_.view()),
        refused_(ring_.longest()) {
    const process::NoFork guard;
    poll_ = process::PrivateFd(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
    if (!poll_) throw_errno("epoll_create1");
    observe({});
  }

  // Where what is written is counted, for who looks (farcall/observe.hpp). Before anybody writes.
  void observe(std::string_view name) noexcept {
    observe::Description end{.kind = observe::Kind::broadcast, .role = observe::Role::writer};
    end.session = observe::inode_of(memory_.fd());
    end.name = name.data();
    end.name_bytes = name.size();
    entry_ = observe::Entry(end);
  }

  void listen(std::string_view name);
  void close() noexcept;
  UniqueFd invite();
  Outcome write(std::span<const std::byte> message, Deadline deadline,
                std::optional<SignalCount> since);
  [[nodiscard]] std::size_t longest() const noexcept { return ring_.longest(); }
  [[nodiscard]] unsigned readers() noexcept {
    const std::lock_guard guard(lock_);
    return static_cast<unsigned>(readers_.size());
  }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
  Outcome prepare_poll();
  void finish_poll() noexcept;
  [[nodiscard]] int poll_descriptor() const noexcept { return poll_.get(); }

 private:
  class Visitors;
  class Death;
  // Lets the holder of the other end read. Throws SystemError.
  void admit(process::PrivateFd lifeline);
  std::vector<ReaderPointer> take_dead();
  void welcome(int socket, const Welcome& words, const Reader* reader) const;
  void remove(const ReaderPointer& reader) noexcept;
  void look_at_readers();
  Outcome make_room(std::size_t size, Deadline deadline, SignalCount since);
  ReaderPointer slowest(std::size_t size);

  const Publisher::Options options_;
  const std::uint64_t generation_ = process::generation();
  BroadcastMemory memory_;
  BroadcastWriter ring_;
  observe::Entry entry_;
  std::vector<ReaderPointer> known_;  // the writer's copy
  std::uint64_t known_changes_ = 0;
  std::size_t refused_;      // bytes of the message that had no room last; at first the longest
  process::PrivateFd poll_;  // lists the lifeline of who is polled, and is empty otherwise
  ReaderPointer polled_;     // which keeps that lifeline open

  std::mutex lock_;  // protects what follows, and that the floor is raised
  std::vector<ReaderPointer> readers_;
  bool closed_ = false;
  std::atomic<std::uint64_t> changes_{0};
  NewestPlace newest_;

  std::shared_ptr<Visitors> visitors_;
};

// Those who come by name, on the reactor's thread.
class PublisherState::Visitors final : public process::Watch,
                                       public std::enable_shared_from_this<Visitors> {
 public:
  Visitors(std::weak_ptr<PublisherState> publisher, UniqueFd listener)
      : publisher_(std::move(publisher)), acceptor_(std::move(listener)) {}

  void start() { acceptor_.start(shared_from_this()); }
  // The name is free when this returns.
  void stop() noexcept { acceptor_.close(); }
  void on_readable(std::uint32_t) noexcept override {
    const auto publisher = publisher_.lock();
    if (!publisher) return;
    (void)acceptor_.accept_waiting([&](UniqueFd& client, const Credentials& who, bool full) {
      if (!full && process::is_own(who.uid))
        publisher->admit(process::PrivateFd(std::move(client)));
    });
  }

 private:
  const std::weak_ptr<PublisherState> publisher_;
  process::Acceptor acceptor_;
};

class PublisherState::Death final : public process::Watch {
 public:
  Death(std::weak_ptr<PublisherState> publisher, std::weak_ptr<Reader> reader)
      : publisher_(std::move(publisher)), reader_(std::move(reader)) {}
  void on_readable(std::uint32_t) noexcept override {
    const auto reader = reader_.lock();
    if (!reader) return;
    if (const auto publisher = publisher_.lock()) publisher->remove(reader);
    reader->watch.stop();
  }

 private:
  const std::weak_ptr<PublisherState> publisher_;
  const std::weak_ptr<Reader> reader_;
};

void PublisherState::listen(std::string_view name) {
  {
    const process::NoFork guard;
    visitors_ = std::make_shared<Visitors>(weak_from_this(), NamedListener(name).release());
  }
  observe(name);
  visitors_->start();
}

void PublisherState::close() noexcept {
  if (visitors_) visitors_->stop();
  std::vector<ReaderPointer> last;
  {
    const std::lock_guard guard(lock_);
    closed_ = true;
    last.swap(readers_);
  }
  for (const ReaderPointer& reader : last) {
    reader->end(WaitState::kFinished);
    reader->watch.stop();
  }
}

void PublisherState::welcome(int socket, const Welcome& words, const Reader* reader) const {
  const auto bytes = std::as_bytes(std::span(&words, 1));
  if (reader == nullptr) return send_fd_message(socket, bytes, {});
  send_fd_message(socket, bytes, std::array{memory_.fd(), reader->page.fd()});
}

void PublisherState::admit(process::PrivateFd lifeline) {
  const int socket = lifeline.get();
  auto reader = std::make_shared<Reader>(options_.wait, std::move(lifeline));
  Welcome words;
  words.waited_for = options_.slow == SlowReader::overwrite ? 0 : 1;
  std::vector<ReaderPointer> dead;  // destroyed without the lock
  {
    const std::lock_guard guard(lock_);
    if (readers_.size() >= options_.readers) dead = take_dead();
    if (closed_ || readers_.size() >= options_.readers) {
      words.error = closed_ ? ECONNREFUSED : EUSERS;
      welcome(socket, words, nullptr);
      throw SystemError(EUSERS, "there are " + std::to_string(readers_.size()) + " readers");
    }
    words.oldest = reader->oldest = ring_.floor();
    words.newest = reader->newest = newest_.get();
    reader->read = words.oldest.position;
    reader->control().head.value.store(reader->read | kNotBegun, std::memory_order_relaxed);
    readers_.push_back(reader);
    changes_.fetch_add(1, std::memory_order_relaxed);
    // Who writes afterwards sees that it has come; or has written what the reader sees when it
    // looks.
    full_fence();
    // Under the lock: who counts as a reader is told so before a publisher that closes ends it.
    try {
      welcome(socket, words, reader.get());
    } catch (...) {
      std::erase(readers_, reader);
      changes_.fetch_add(1, std::memory_order_relaxed);
      throw;
    }
  }
  try {
    reader->watch.start(socket, EPOLLRDHUP, std::make_shared<Death>(weak_from_this(), reader));
  } catch (...) {
    remove(reader);
    throw;
  }
}

// Removes those who have gone, of which the reactor may not have told yet. With the lock held.
std::vector<ReaderPointer> PublisherState::take_dead() {
  std::vector<pollfd> lifelines;
  for (const ReaderPointer& reader : readers_)
    lifelines.push_back({.fd = reader->lifeline.get(), .events = POLLRDHUP, .revents = 0});
  std::vector<ReaderPointer> dead;
  if (::poll(lifelines.data(), lifelines.size(), 0) <= 0) return dead;
  std::vector<ReaderPointer> living;
  for (std::size_t i = 0; i < readers_.size(); ++i)
    (lifelines[i].revents == 0 ? living : dead).push_back(readers_[i]);
  readers_ = std::move(living);
  changes_.fetch_add(1, std::memory_order_relaxed);
  return dead;
}

void PublisherState::remove(const ReaderPointer& reader) noexcept {
  const std::lock_guard guard(lock_);
  if (std::erase(readers_, reader) != 0) changes_.fetch_add(1, std::memory_order_relaxed);
}

UniqueFd PublisherState::invite() {
  const process::NoFork guard;
  auto [mine, theirs] = socket_pair();
  admit(process::PrivateFd(std::move(mine)));
  return beyond_standard_streams(std::move(theirs));
}

// Takes a copy of the list, if it has changed.
void PublisherState::look_at_readers() {
  if (changes_.load(std::memory_order_relaxed) == known_changes_) return;
  std::vector<ReaderPointer> gone;  // destroyed without the lock
  gone.swap(known_);
  const std::lock_guard guard(lock_);
  known_ = readers_;
  known_changes_ = changes_.load(std::memory_order_relaxed);
}

// Raises the floor as far as readers permit. The reader that does not permit a message of `size`
// bytes, if there is one: the slowest.
ReaderPointer PublisherState::slowest(std::size_t size) {
  const std::uint64_t needed = ring_.lowest_floor(size);
  std::vector<ReaderPointer> late;
  ReaderPointer last;
  {
    const std::lock_guard guard(lock_);
    std::uint64_t limit = ring_.tail().position;
    if (options_.slow != SlowReader::overwrite) {
      for (const ReaderPointer& reader : readers_) {
        const bool drops = options_.slow == SlowReader::drop;
        const std::uint64_t read = reader->read_by(drops, needed);
        const bool possible = read >= reader->read && read <= ring_.tail().position;
        if (possible) reader->read = read;
        if (!possible || (drops && read < needed)) {
          late.push_back(reader);
          // relaxed: it is seen by who sees the floor that is raised below.
          reader->control().writer.state.store(kDropped, std::memory_order_relaxed);
        } else if (read < limit) {
          limit = read;
          last = reader;
        }
      }
      for (const ReaderPointer& reader : late) std::erase(readers_, reader);
      if (!late.empty()) changes_.fetch_add(1, std::memory_order_relaxed);
    }
    if (limit >= needed) {
      ring_.raise_floor(size, limit);
      last = nullptr;
    }
  }
  for (const ReaderPointer& reader : late) {
    reader->end(kDropped);
    reader->watch.stop();
  }
  return last;
}

Outcome PublisherState::make_room(std::size_t size, Deadline deadline, SignalCount since) {
  while (const ReaderPointer reader = slowest(size)) {
    const std::uint64_t needed = ring_.lowest_floor(size);
    RingControl& control = reader->control();
    reader->waiter.observe(entry_.sent());
    const Outcome outcome = reader->waiter.wait(
        control.writer, control.reader, deadline,
        [&] { return control.head.value.load(std::memory_order_acquire) >= needed; }, since);
    if (outcome == Outcome::peer_gone)
      remove(reader);
    else if (outcome != Outcome::ok)
      return outcome;
  }
  return Outcome::ok;
}

// One reader at a time is waited for, the slowest: when it has read on another may be that.
Outcome PublisherState::prepare_poll() {
  finish_poll();
  const std::size_t size = refused_;
  if (options_.slow != SlowReader::block || ring_.has_room(size)) return Outcome::ok;
  const std::uint64_t needed = ring_.lowest_floor(size);
  while (const ReaderPointer reader = slowest(size)) {
    RingControl& control = reader->control();
    const auto has_read = [&] {
      return control.head.value.load(std::memory_order_acquire) >= needed;
    };
    if (reader->waiter.prepare_poll(control.writer, control.reader, has_read) == Outcome::ok) {
      if (!has_read()) remove(reader);
      continue;
    }
    polled_ = reader;
    // A reader that dies leaves its lifeline readable; the reactor, which is told as well, does
    // not close it before this has let go of it.
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {}};
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, reader->lifeline.get(), &event) != 0) {
      const int error = errno;
      finish_poll();
      throw SystemError(error, "wait for a reader");
    }
    return Outcome::would_block;
  }
  return Outcome::ok;
}

void PublisherState::finish_poll() noexcept {
  if (!polled_) return;
  ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, polled_->lifeline.get(), nullptr);
  polled_->waiter.finish_poll(polled_->control().writer);
  polled_.reset();
}

[[gnu::hot]] Outcome PublisherState::write(std::span<const std::byte> message, Deadline deadline,
                                           std::optional<SignalCount> since) {
  if (message.size() > ring_.longest()) return Outcome::too_big;
  if (!ring_.has_room(message.size())) [[unlikely]] {
    const Outcome outcome =
        make_room(message.size(), deadline, since ? *since : SignalCount::now());
    if (outcome != Outcome::ok) {
      refused_ = message.size();
      return outcome;
    }
  }
  ring_.write(message);
  newest_.set(ring_.tail());
  wake_readers([this]() -> const auto& {
    look_at_readers();
    return known_;
  });
  observe::note_sent(entry_.sent(), message.data(), message.size());
  return Outcome::ok;
}

}  // namespace broadcast

namespace {

const Publisher::Options& checked(const Publisher::Options& options) {
  if (options.readers == 0 || options.readers > Publisher::kMostReaders)
    throw MisuseError("a publisher has 1 to 64 readers");
  if (options.capacity > kLargestRingCapacity)
    throw SystemError(ENOMEM, "a publisher of " + std::to_string(options.capacity) + " bytes");
  return options;
}

}  // namespace

Publisher::Publisher(const Options& options)
    : state_(std::make_shared<broadcast::PublisherState>(checked(options))) {}
Publisher::Publisher(std::string_view name, const Options& options) : Publisher(options) {
  state_->listen(name);
}
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Publisher::~Publisher() {
  if (!state_) return;
  if (state_->generation() != process::generation())
    process::leak_in_child(state_);
  else
    state_->close();
}

UniqueFd Publisher::invite() { return state_->invite(); }
Outcome Publisher::write(std::span<const std::byte> message, Deadline deadline,
                         std::optional<SignalCount> since) {
  return state_->write(message, deadline, since);
}
std::size_t Publisher::longest() const noexcept { return state_->longest(); }
unsigned Publisher::readers() const noexcept { return state_->readers(); }
Outcome Publisher::prepare_poll() { return state_->prepare_poll(); }
void Publisher::finish_poll() noexcept { state_->finish_poll(); }
int Publisher::poll_descriptor() const noexcept { return state_->poll_descriptor(); }

}  // namespace farcall
