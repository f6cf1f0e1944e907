// SPDX-License-Identifier: Apache-2.0
//
// Ids of clients that wait for a reply: an id is good for one answer, and whoever uses one has the
// client alone meanwhile.
#include "message/pending_reply.hpp"

#include "farcall/error.hpp"
#include "model/mutation.hpp"

namespace farcall::model {
namespace {

using message::PendingReply;
using message::Use;

// Its place in the table is nobody's affair but here, where it must be known to the checker.
void* place_of(const PendingReply& pending);
template <auto kPlace>
struct Reveal {
  friend void* place_of(const PendingReply& pending) { return pending.*kPlace; }
};
template struct Reveal<&PendingReply::place_>;
constexpr std::size_t kPlaceBytes = 64;

// What was received, and what has become of it.
struct Words {
  int received = 0;
  int answers = 0;
  std::atomic<int> done{0};
  std::atomic<std::int64_t> id{0};  // as passed on without any order
};

struct Client final : PendingReply {
  explicit Client(Words& its) : words(its) {}
  void reply(int, int, message::Buffers, bool) override { ++words.answers; }
  std::size_t read(std::size_t, message::Buffers) override { return 0; }
  std::size_t write(std::size_t, message::Buffers) override { return 0; }
  [[nodiscard]] bool is_of(const message::Channel&) const noexcept override { return true; }
  // Whoever sees this may have another client in its place.
  void done() noexcept override { words.done.store(1, std::memory_order_release); }
  Words& words;
};

struct Table : Scenario {
  Table() {
    share(&words, sizeof words);
    share(place_of(client), kPlaceBytes);
  }
  // An execution that is given up leaves locks as they are.
  ~Table() override { std::memset(place_of(client), 0, 2 * sizeof(std::uint32_t)); }

  // True: the client with that id has been answered.
  bool answer(std::int64_t id, int expected) {
    try {
      Use use(id);
      require(words.received == expected, "another message");
      use->reply(0, 0, {}, false);
      use.end();
      return true;
    } catch (const SystemError&) {
      return false;
    }
  }

  Words words;
  Client client{words};
};

struct AnsweredTwice : Table {
  AnsweredTwice() {
    words.received = 1;
    const std::int64_t id = client.give_id();
    for (bool& mine : answered) threads.emplace_back([this, id, &mine] { mine = answer(id, 1); });
  }
  void finish() override {
    require(answered[0] != answered[1], "not answered once");
    require(words.answers == 1, "another number of answers");
  }
  bool answered[2]{};
};

// The channel goes, and with it what was received.
struct TakenAway : Table {
  TakenAway() {
    words.received = 1;
    const std::int64_t id = client.give_id();
    threads.emplace_back([this, id] { answered = answer(id, 1); });
    threads.emplace_back([this] {
      taken = client.take_id();
      if (taken) words.received = 2;
    });
  }
  void finish() override { require(answered != taken, "both or neither"); }
  bool answered = false;
  bool taken = false;
};

// Likewise, as soon as it has been received by a thread that knows nothing of that.
struct TakenAtOnce : Table {
  TakenAtOnce() {
    threads.emplace_back([this] {
      words.received = 1;
      static_cast<void>(client.give_id());
    });
    threads.emplace_back([this] {
      if (client.take_id()) words.received = 2;
    });
  }
};

// Another thread than the one that received it answers, and has the id from elsewhere: nothing
// orders the two but the id itself, which may be in use a little later than it is known.
struct PassedOn : Table {
  PassedOn() {
    threads.emplace_back([this] {
      words.received = 1;
      words.id.store(client.give_id(), std::memory_order_relaxed);
    });
    threads.emplace_back([this] {
      std::int64_t id = 0;
      while ((id = words.id.load(std::memory_order_relaxed)) == 0) pause();
      while (!answer(id, 1)) pause();
    });
  }
};

// The place goes to another client, which an old id does not reach.
struct UsedAgain : Table {
  UsedAgain() {
    words.received = 1;
    const std::int64_t id = client.give_id();
    threads.emplace_back([this, id] {
      if (!answer(id, 1)) return;
      // As who receives from the channel that has got it back.
      if (words.done.load(std::memory_order_acquire) == 0) return;
      words.received = 2;
      static_cast<void>(client.give_id());
    });
    threads.emplace_back([this, id] { answer(id, 1); });
  }
  void finish() override { require(words.answers == 1, "another number of answers"); }
};

template <class Kind>
Check check(const char* name, bool pauses_wait = false) {
  // relax() is part of a loop that ends anyhow, and goes on to sleep.
  return {.name = name,
          .make = [] { return std::make_unique<Kind>(); },
          .options = {.pauses_wait = pauses_wait, .fences_reach_all = true}};
}

std::vector<Check> checks() {
  return {
      check<AnsweredTwice>("two answers to one message"),
      check<TakenAway>("an answer while the channel goes"),
      check<TakenAtOnce>("the channel goes while a message is received"),
      check<PassedOn>("an answer by another thread", true),
      check<UsedAgain>("an answer to who has been answered"),
  };
}

TEST(ModelPendingReply, AnIdIsGoodForOneAnswer) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelPendingReply, TheHeavyFenceIsNeeded) { expect_heavy_fences_matter(checks()); }

TEST(ModelPendingReply, EveryOrderIsNeeded) {
  expect_every_order_matters(checks(), {"message/pending_reply.cpp"});
}

}  // namespace
}  // namespace farcall::model
