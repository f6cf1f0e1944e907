// SPDX-License-Identifier: Apache-2.0
//
// Owners of what libnats hands out, and the bridge's one connection to the cluster.
#pragma once

#include <nats/nats.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bridge/bridge.hpp"
#include "bridge/connect.hpp"
#include "bridge/wire.hpp"

namespace farcall::bridge {

using Clock = std::chrono::steady_clock;

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const noexcept {
    destroy(object);
  }
};

// A descriptor that is ready to be read once it has been told, until it is cleared.
class Event {
 public:
  Event();  // throws BridgeError
  ~Event() { ::close(fd_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void tell() const noexcept { (void)::eventfd_write(fd_, 1); }
  void clear() const noexcept {
    eventfd_t ignored = 0;
    (void)::eventfd_read(fd_, &ignored);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  const int fd_;
};

// libnats has a thread that frees messages, and wakes it for each: it is to be worth it.
void discard(natsMsg* message) noexcept;

// A message that was received.
class Msg {
 public:
  Msg() noexcept = default;
  explicit Msg(natsMsg* message) noexcept : message_(message) {}

  explicit operator bool() const noexcept { return message_ != nullptr; }
  [[nodiscard]] std::string_view subject() const noexcept {
    return ::natsMsg_GetSubject(message_.get());
  }
  // Empty where nobody waits for an answer.
  [[nodiscard]] std::string_view reply() const noexcept {
    const char* const reply = ::natsMsg_GetReply(message_.get());
    return reply != nullptr ? reply : std::string_view();
  }
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return {reinterpret_cast<const std::byte*>(::natsMsg_GetData(message_.get())),
            static_cast<std::size_t>(::natsMsg_GetDataLength(message_.get()))};
  }
  // Whether it has the header of bridges, well-formed or not.
  [[nodiscard]] bool has_header() const noexcept { return header_text() != nullptr; }
  [[nodiscard]] std::optional<Header> header() const noexcept {
    const char* const text = header_text();
    return text != nullptr ? parse(text) : std::nullopt;
  }
  // The same of a request, where it may stand in the reply subject as well.
  [[nodiscard]] bool has_request_header() const noexcept {
    return has_header() || !text_in_subject(reply()).empty();
  }
  [[nodiscard]] std::optional<Header> request_header() const noexcept {
    return has_header() ? header() : parse(text_in_subject(reply()));
  }
  // The cluster's word that nobody listens to what was published.
  [[nodiscard]] bool is_no_responders() const noexcept {
    return ::natsMsg_IsNoResponders(message_.get());
  }

 private:
  [[nodiscard]] const char* header_text() const noexcept {
    const char* text = nullptr;
    return ::natsMsgHeader_Get(message_.get(), kHeaderName, &text) == NATS_OK ? text : nullptr;
  }

  std::unique_ptr<natsMsg, Destroy<discard>> message_;
};

using OwnMsg = std::unique_ptr<natsMsg, Destroy<discard>>;
using Subscription = std::unique_ptr<natsSubscription, Destroy<natsSubscription_Destroy>>;

class Connection;

// One connection of libnats. It is not connected again: what has been lost in the middle of a
// message would go on there (libnats, issue 1007).
struct Link {
  struct Attached {
    Connection& owner;
    const std::uint64_t socket;  // its number among those that there have been
  };
  std::uint64_t number = 0;
  std::unique_ptr<Attached> attached;  // what libnats knows of us
  std::unique_ptr<natsConnection, Destroy<natsConnection_Destroy>> connection;
  Subscription inbox;
};

// The bridge's way to the cluster: a link, and when it is lost another one.
class Connection {
 public:
  // What the cluster says of its own accord. Called by threads of libnats.
  struct Events {
    // The cluster does not let us publish to that subject.
    std::function<void(const std::string& subject)> publish_denied;
    std::function<void(Msg message)> inbox;  // what came to a subject of inbox()
    std::function<void()> linked;            // there is another link, without subscriptions
    std::function<void()> lost;              // with a link, perhaps what was sent last; by whoever
  };

  // Who takes in what comes: a thread of its own, or those who call read().
  enum class Reads { itself, by_others };

  // Connects. Throws BridgeError.
  Connection(const Config& config, Reads reads);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // From now on events come; where others read, they have to do so from now on. Throws BridgeError.
  void listen(Events events);
  // Waits until something comes from the cluster, for interrupt() or for so long, and takes in what
  // has come. By one thread at a time; and one there has to be, always: it sends what libnats has
  // to say on its own behalf, too.
  void read(std::chrono::milliseconds longest) noexcept;
  // Sends what publish() has kept.
  void send() noexcept;
  // Whether what this thread publishes is kept, since it will publish more, or send(), soon.
  static void gather(bool more) noexcept;
  // Ends a read().
  void interrupt() noexcept;
  // So many messages that are not for inbox() have been taken in. By the one who reads.
  [[nodiscard]] std::uint64_t came() noexcept;
  // From now on nobody waits for a cluster that is away, or that takes little.
  void hurry() noexcept;
  // From now on nothing more is sent. Before, what is published
  // already is sent, if that takes no longer than a second.
  void end_waits() noexcept;
  // Nothing comes any more when it has returned. Nobody else may read meanwhile.
  void close() noexcept;

  // Published once, or not at all: 0, ENETDOWN, EMSGSIZE, ENOMEM, ENOBUFS: too much waits for a
  // cluster that takes nothing; ECONNRESET: nobody knows.
  // `header` may be null. May wait until the deadline for a cluster that takes little, or that is
  // away and has not been for the connect bound. While another thread sends it sends this as well,
  // and 0 only means that it will; so it does where the deadline comes first.
  static constexpr Clock::time_point kAtOnce = Clock::time_point::min();
  int publish(const std::string& subject, const std::string* reply, const Header* header,
              std::span<const std::byte> data, Clock::time_point deadline = kAtOnce);
  // A subject of this process's own, of one word.
  [[nodiscard]] std::string inbox(std::string_view word) const {
    return prefix_ + std::string(word);
  }
  // The word behind it; empty if it is no subject of ours.
  [[nodiscard]] std::string_view word_of(std::string_view subject) const noexcept {
    return subject.starts_with(prefix_) ? subject.substr(prefix_.size()) : std::string_view();
  }
  // Of the present link.
  [[nodiscard]] std::uint64_t link_number() const noexcept { return link()->number; }
  // Goes with its link, whose number is put into `link`. Throws BridgeError.
  Subscription subscribe_queue(const std::string& subject, std::uint64_t& link);
  // The name's subject, in the domain.
  [[nodiscard]] std::string full(const std::string& subject) const {
    return domain_.empty() ? subject : domain_ + "." + subject;
  }
  // Waits until the cluster has seen all that was sent. Throws BridgeError, also where it has
  // refused a subject meanwhile.
  void confirm();
  // The most bytes of one message beside its header.
  [[nodiscard]] std::size_t longest() const noexcept;
  // The most bytes of a request or answer that does not travel in pieces.
  [[nodiscard]] std::size_t whole() const noexcept {
    return std::min<std::size_t>(longest(), kWholeBytes);
  }
  [[nodiscard]] bool is_up() const noexcept { return up_; }
  // When the server last took or gave anything.
  [[nodiscard]] Clock::time_point last_activity() const noexcept { return last_activity_; }
  [[nodiscard]] std::uint64_t reconnects() const noexcept { return links_ - 1; }
  [[nodiscard]] std::string server() const;

 private:
  struct Callbacks;  // of libnats
  std::shared_ptr<Link> connect(std::chrono::milliseconds most, Refusal& refusal);
  natsConnection* connect_to(const std::string& url, std::chrono::milliseconds most,
                             Refusal& refusal);
  [[nodiscard]] std::shared_ptr<Link> link() const noexcept {
    const std::lock_guard guard(link_lock_);
    return link_;
  }
  void listen_on(Link& link);
  void limit_pending(natsSubscription* subscription) const;
  void keep_connected() noexcept;
  void message(natsSubscription* subscription, Msg message);
  void read_first() noexcept;
  Link::Attached* attach(int socket) noexcept;
  void detach(std::uint64_t socket) noexcept;
  void look_alive() noexcept;
  // The server has given or taken something; but the end of a link that look_alive() has ended is
  // none of its signs.
  void note_activity(Clock::time_point now) noexcept {
    if (silent_since_.load() == Clock::time_point::max()) last_activity_ = now;
  }
  int flush(std::uint64_t socket, Clock::time_point deadline) noexcept;
  void send_queue(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) noexcept;
  bool wait_up(Clock::time_point deadline);
  void down(const Link* which);
  void up();
  void know(natsConnection* connection);
  void failed(natsConnection* connection, natsStatus status);
  void ended(unsigned& what);

  const std::string domain_;
  const Reads reads_;
  const Clock::duration patience_;
  static constexpr int kPings = 3;         // so many without an answer, and the server is dead
  const std::chrono::milliseconds ping_;   // between two
  const std::chrono::milliseconds again_;  // for each server, when one has been lost
  std::unique_ptr<natsStatistics, Destroy<natsStatistics_Destroy>> counts_;  // the reader's
  std::uint64_t counted_ = 0;                                                // link; likewise
  std::uint64_t came_before_ = 0;                                            // by earlier links
  std::uint64_t came_ = 0;
  std::string prefix_;
  const Event wake_;  // for the one who reads
  const bool signs_;
  const std::uint64_t most_pending_;  // bytes that have been read and not been taken; or not sent
  std::unique_ptr<natsOptions, Destroy<natsOptions_Destroy>> options_;
  Events events_;
  std::unique_ptr<Link::Attached> attached_;  // of the link that is being made
  std::thread keeper_;  // makes the next link; reads, where nobody else does yet
  mutable std::mutex link_lock_;
  std::shared_ptr<Link> link_;
  std::atomic<std::uint64_t> links_{0};
  std::mutex read_lock_;                   // held by who reads, where nobody else does
  std::atomic<bool> reading_{false};       // a thread of libnats does, or is about to
  std::atomic<int> fd_{-1};                // the socket; -1: there is none
  std::mutex socket_lock_;                 // held while those two change
  std::atomic<std::uint64_t> sockets_{0};  // counts them, and their ends
  std::mutex event_lock_;  // held while libnats reads or writes: it expects one thread to do both
  std::atomic<Clock::time_point> last_activity_{
      Clock::time_point()};                                     // when the server last took or gave
  std::atomic<Clock::time_point> looked_{Clock::time_point()};  // when one last tried to read
  // When one began to do so after a rest of this process: before, nothing of the server was read.
  std::atomic<Clock::time_point> listening_since_{Clock::time_point()};
  // When the server of the link that is no good was last active, if that is what it is.
  std::atomic<Clock::time_point> silent_since_{Clock::time_point::max()};
  std::atomic<bool> unsent_{false};  // libnats has something for it
  std::atomic<bool> up_{true};
  std::atomic<bool> hurried_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> sending_{false};  // somebody sends; changed with send_lock_ held
  std::mutex send_lock_;              // protects what follows
  std::condition_variable room_;
  std::vector<OwnMsg> queue_;  // for the one who sends
  std::size_t queued_ = 0;     // bytes of it
  mutable std::mutex lock_;    // protects what follows
  std::condition_variable changed_;
  const std::vector<std::string> servers_;  // of the configuration
  std::vector<std::string> told_of_;        // by the last server that told of any
  Clock::time_point down_since_;
  std::string refusal_;  // the last that the cluster said
  bool closed_ = false;
  unsigned told_ = 0;     // so many links are closed, and it was their last event
  unsigned emptied_ = 0;  // of so many inboxes nobody handles a message any more
  unsigned inboxes_ = 0;
};

}  // namespace farcall::bridge
