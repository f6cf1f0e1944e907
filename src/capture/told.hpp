// SPDX-License-Identifier: Apache-2.0
//
// What one end has received the other one has sent. Where both tell of it, it is wanted once.
//
//  - A message that was sent and one that was received are the same if they are of the same
//    conversation and have the same bytes. One is set against one, so that a message whose sender
//    has not told of it stays, whatever else that sender told of.
//  - Of streams the bytes count, not the pieces they come in: their place says which they are.
//  - What is remembered has a bound over all processes together. What was forgotten is told twice.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "capture/message.hpp"

namespace farcall::capture {

// A socket that is bound to no address of this machine in particular sends from the one it sends
// to.
observe::Address own_address(const Message& message);

class Told {
 public:
  // `one_sided`: of most conversations one end alone is seen.
  explicit Told(bool one_sided) : one_sided_(one_sided) {}

  // Bytes of a message.
  struct Part {
    std::uint32_t from;
    std::uint32_t to;
  };
  // What nobody has told of yet: none, all of it or, of a stream, parts. In the order of time.
  std::vector<Part> rest_of(const Message& message);

  // Messages that may still be told of by their other end, of each direction.
  static constexpr std::size_t kMostRemembered = 1 << 18;

 private:
  // What both ends call what they share: from where to where, or the memory; and whose they are.
  struct Conversation {
    observe::Kind kind{};
    uid_t user = 0;
    std::uint64_t session = 0;
    std::array<std::uint8_t, 36> addresses{};
    auto operator<=>(const Conversation&) const = default;
  };
  using End = std::pair<pid_t, std::int64_t>;
  // The bytes come first: few messages have the same.
  struct Key {
    std::uint64_t bytes = 0;
    Conversation conversation;
    End end;
    std::uint64_t number = 0;  // of all that were remembered
    auto operator<=>(const Key&) const = default;
  };
  // Messages that were told of by one of their ends.
  class Waiting {
   public:
    using Index = std::map<Key, std::int64_t>;  // when
    void add(Key key, std::int64_t time);
    // The oldest with these bytes of another end, of a process if that is not 0, that is not older
    // than `since`.
    Index::iterator find(const Key& key, pid_t of, std::int64_t since);
    [[nodiscard]] bool has(Index::iterator at) const { return at != index_.end(); }
    void erase(Index::iterator at);
    void forget_before(std::int64_t time);

   private:
    Index index_;
    std::map<std::uint64_t, Index::iterator> by_age_;
    std::uint64_t numbers_ = 0;
  };
  // A direction of a stream; the last number says which.
  using Way = std::tuple<Conversation, unsigned>;
  // Bytes of it that were told of: from, to.
  using Places = std::map<std::uint64_t, std::uint64_t>;

  static Key key_of(const Message& message);
  bool is_sent_told(const Key& key, const Message& message);
  bool is_received_told(const Key& key, const Message& message);
  bool take_early(const Key& key, const Message& message);
  std::vector<Part> rest_of_stream(const Key& key, unsigned way, const Message& message);
  Places& places_of(const Key& key, unsigned way);

  bool one_sided_;
  Waiting sent_;
  Waiting received_;
  std::map<Way, Places> streams_;
};

}  // namespace farcall::capture
