// SPDX-License-Identifier: Apache-2.0
//
// The broadcast of this library: one message for all readers.
#include "farcall/broadcast.hpp"

#include <vector>

#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

void must_be_ok(Outcome outcome, const char* what) {
  if (outcome != Outcome::ok) throw SystemError(to_errno(outcome), what);
}

class PublishingEnd final : public WritingEnd {
 public:
  explicit PublishingEnd(Publisher publisher) : publisher_(std::move(publisher)) {}
  void send(std::span<const std::byte> message) override {
    must_be_ok(publisher_.write(message, Deadline::never()), "broadcast");
  }

 private:
  Publisher publisher_;
};

class SubscribedEnd final : public ReadingEnd {
 public:
  SubscribedEnd(UniqueFd invitation, WaitMode wait)
      : subscriber_(Subscriber::adopt(std::move(invitation), {.wait = wait})) {}
  void receive(std::span<std::byte> message) override {
    std::size_t size = 0;
    must_be_ok(subscriber_.read(message, size, missed_, Deadline::never()), "read a broadcast");
    if (size != message.size()) throw SystemError(EPROTO, "a message of another size");
  }
  [[nodiscard]] std::optional<std::uint64_t> told_missed() const override { return missed_; }

 private:
  Subscriber subscriber_;
  std::uint64_t missed_ = 0;
};

class BroadcastConnection final : public Connection {
 public:
  BroadcastConnection(const Conditions& conditions, SlowReader slow, WaitMode wait)
      : wait_(wait),
        publisher_({.capacity = default_depth(conditions), .slow = slow, .wait = wait}) {
    for (unsigned i = 0; i < conditions.readers; ++i) invitations_.push_back(publisher_.invite());
  }
  std::unique_ptr<Endpoint> open(Role) override {
    invitations_.clear();  // the readers have them
    return std::make_unique<PublishingEnd>(std::move(publisher_));
  }
  std::unique_ptr<Endpoint> open_reader(unsigned index) override {
    UniqueFd mine = std::move(invitations_[index]);
    invitations_.clear();
    return std::make_unique<SubscribedEnd>(std::move(mine), wait_);
  }

 private:
  WaitMode wait_;
  Publisher publisher_;
  std::vector<UniqueFd> invitations_;
};

// See Publisher::longest().
std::string refuses_long(const Conditions& conditions) {
  return conditions.message_bytes + kLine >= default_depth(conditions) / 4
             ? "a message is shorter than a quarter of what the broadcast holds"
             : "";
}

}  // namespace

// Readers that spin for ever take the processors from one another: that is no way to have many.
void add_broadcast(RowList& list) {
  const auto add = [&](SlowReader slow, const char* mechanism, const char* description) {
    for (const WaitMode wait : {WaitMode::adaptive, WaitMode::block})
      list.add({.mechanism = mechanism,
                .engine = "shared",
                .wait = std::string(to_string(wait)),
                .description = description,
                .waits = true,
                .policy = slow == SlowReader::block ? "block" : "overwrite"},
               makes<BroadcastConnection>(slow, wait), refuses_long);
  };
  add(SlowReader::block, "broadcast", "this library; the writer waits for the slowest reader");
  add(SlowReader::overwrite, "broadcast_overwrite",
      "this library; slow readers miss what is old, and know how much");
}

}  // namespace farcall::compare
