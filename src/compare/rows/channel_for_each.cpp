// SPDX-License-Identifier: Apache-2.0
//
// What one does without a broadcast: a channel for each reader, and as many writes.
#include <cerrno>
#include <vector>

#include "compare/rows/rows.hpp"
#include "farcall/channel/mechanism.hpp"

namespace farcall::compare {
namespace {

using channel::AnyChannel;
using channel::AnyMechanism;

class AllWriters final : public WritingEnd {
 public:
  explicit AllWriters(std::vector<AnyChannel>& channels) {
    for (AnyChannel& one : channels) writers_.push_back(one.take_writer());
  }
  void send(std::span<const std::byte> message) override {
    for (const auto& one : writers_) one->write(message);
  }

 private:
  std::vector<std::unique_ptr<channel::Writer>> writers_;
};

class OneReader final : public ReadingEnd {
 public:
  explicit OneReader(std::unique_ptr<channel::Reader> reader) : reader_(std::move(reader)) {}
  void receive(std::span<std::byte> message) override {
    if (reader_->read_fully(message) != message.size())
      throw SystemError(EPIPE, "the writer has closed the channel");
  }

 private:
  std::unique_ptr<channel::Reader> reader_;
};

class Channels final : public Connection {
 public:
  Channels(const AnyMechanism& mechanism, const channel::Options& options, unsigned count) {
    for (unsigned i = 0; i < count; ++i) channels_.emplace_back(mechanism, options);
  }
  std::unique_ptr<Endpoint> open(Role) override { return std::make_unique<AllWriters>(channels_); }
  std::unique_ptr<Endpoint> open_reader(unsigned index) override {
    auto mine = channels_[index].take_reader();
    channels_.clear();  // so that the end of each is seen
    return std::make_unique<OneReader>(std::move(mine));
  }

 private:
  std::vector<AnyChannel> channels_;
};

void add(RowList& list, const char* name, WaitMode wait, const char* description) {
  const AnyMechanism& mechanism = *channel::find_mechanism(name);
  const bool waits = mechanism.properties().waits;
  list.add({.mechanism = name,
            .engine = waits ? "shared" : "linux",
            .wait = std::string(to_string(wait)),
            .description = description,
            .waits = waits,
            .policy = "block"},
           [&mechanism, wait](const Conditions& conditions) {
             const channel::Options options{.buffer_bytes = conditions.depth_bytes, .wait = wait};
             return std::make_unique<Channels>(mechanism, options, conditions.readers);
           });
}

}  // namespace

void add_channel_for_each(RowList& list) {
  for (const WaitMode wait : {WaitMode::adaptive, WaitMode::block})
    add(list, "ring", wait, "a ring for each reader");
  add(list, "pipe", WaitMode::block, "a pipe for each reader");
}

}  // namespace farcall::compare
