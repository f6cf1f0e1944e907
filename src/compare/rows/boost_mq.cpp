// SPDX-License-Identifier: Apache-2.0
//
// Boost.Interprocess: a message_queue in POSIX shared memory per direction. Its name is removed
// as soon as the queue is there: both processes have it mapped, and nothing can be left behind.
#include <algorithm>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <cerrno>
#include <string>

#include "compare/rows/rows.hpp"

namespace farcall::compare {
namespace {

namespace ipc = boost::interprocess;

class BoostEnd final : public Endpoint {
 public:
  BoostEnd(ipc::message_queue& out, ipc::message_queue& in) : out_(out), in_(in) {}
  void send(std::span<const std::byte> message) override {
    out_.send(message.data(), message.size(), 0);
  }
  void receive(std::span<std::byte> message) override {
    ipc::message_queue::size_type received = 0;
    unsigned priority = 0;
    in_.receive(message.data(), message.size(), received, priority);
    if (received != message.size())
      throw SystemError(EPROTO, "message_queue: a message of another size");
  }

 private:
  ipc::message_queue& out_;
  ipc::message_queue& in_;
};

class BoostConnection final : public Connection {
 public:
  explicit BoostConnection(const Conditions& conditions)
      : forth_(make(conditions, "-forth")), back_(make(conditions, "-back")) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    return role == Role::client ? std::make_unique<BoostEnd>(*forth_, *back_)
                                : std::make_unique<BoostEnd>(*back_, *forth_);
  }

 private:
  static std::unique_ptr<ipc::message_queue> make(const Conditions& conditions,
                                                  const char* direction) {
    const std::size_t messages =
        std::clamp<std::size_t>(messages_in(default_depth(conditions), conditions), 2, 1 << 20);
    const std::string name = conditions.name + direction;
    auto queue = std::make_unique<ipc::message_queue>(ipc::create_only, name.c_str(), messages,
                                                      conditions.message_bytes);
    ipc::message_queue::remove(name.c_str());
    return queue;
  }

  std::unique_ptr<ipc::message_queue> forth_;
  std::unique_ptr<ipc::message_queue> back_;
};

}  // namespace

void add_boost_mq(RowList& list) {
  list.add({.mechanism = "boost_mq",
            .engine = "library",
            .wait = "block",
            .description = "Boost.Interprocess message_queue"},
           makes<BoostConnection>());
}

}  // namespace farcall::compare
