// SPDX-License-Identifier: Apache-2.0
//
// A session between a client and the threads of a port: how the turn passes, how who serves leaves
// the session to others, how a message is taken back, and how a client's death is told.
#include "call/client_session.hpp"
#include "call/port.hpp"
#include "call/server_session.hpp"
#include "model/mutation.hpp"

namespace farcall::model {
namespace {

using call::ClientSession;
using call::PortState;
using call::Request;
using call::ServerSession;
using call::SessionControl;

// One for all: that it is open is all that a session wants to know of it.
const std::shared_ptr<call::EndpointState>& an_endpoint() {
  static auto* const port = new Port;
  static const auto* const endpoint =
      new auto(call::inside(*port->open_endpoint({}, {})).shared_from_this());
  return *endpoint;
}

// The memory is part of the scenario, and is not unmapped.
process::PrivateMapping page(SessionControl& control) {
  return process::PrivateMapping(Mapping(&control, 0));
}

struct Session : Scenario {
  Session() : first(connect()) {
    control.magic = SessionControl::kMagic;
    control.client.processor = 1;
    control.server.processor = 2;
    const Credentials me{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
    const CallerIdentity identity{.effective = me,
                                  .real_uid = me.uid,
                                  .real_gid = me.gid,
                                  .saved_uid = me.uid,
                                  .saved_gid = me.gid,
                                  .groups = {}};
    client = std::make_unique<ClientSession>(page(control), sockets(first),
                                             call::Maker{.user = me.uid, .trusted = true},
                                             WaitMode::block);
    server = std::make_shared<ServerSession>(page(control), sockets(first + 1), identity, kNumber,
                                             an_endpoint(), WaitMode::block, process::Charge(),
                                             std::make_shared<call::Account>(me.uid));
    share(&control, offsetof(SessionControl, slot) + 128);
    share(client.get(), sizeof *client);
    share(server.get(), sizeof *server);
    hold(control.client.processor.address());
    hold(control.server.processor.address());
    for (const auto& word : control.terms.words) hold(word.address());
  }
  ~Session() override {
    port.reset();
    // As in a forked child: what belongs to another generation is left alone, such as descriptors
    // that only the model has.
    process::detail::wiped.generation.fetch_add(1);
  }

  static call::SessionSockets sockets(int fd) {
    return {.mine = process::PrivateFd(UniqueFd(fd)), .theirs = process::PrivateFd(UniqueFd(fd))};
  }

  static CallArguments message(const std::byte& value) {
    CallArguments arguments;
    arguments.data = {&value, 1};
    return arguments;
  }
  // Sends `value`, and gets it back.
  void call(std::byte value) {
    std::array<std::byte, 8> reply{};
    CallResults results;
    results.buffer = reply;
    const Outcome outcome =
        client->call(message(value), &results, Deadline::never(), SignalCount::now());
    require(outcome == Outcome::ok, "the call failed");
    require(results.data.size() == 1 && results.data[0] == value, "another reply");
  }
  // Of a server's thread that has found the request.
  void serve() {
    std::array<std::byte, kInlineBytes> data;
    Request request;
    require(server->take_short(data.data(), request), "it makes no sense");
    require(request.data.size() == 1, "another size");
    const std::byte value = data[0];
    served.push_back(value);
    if (request.wants_reply) server->reply_shortly({&value, 1}, 0);
  }
  void attend() {
    const Outcome outcome = server->waiter().wait(control.server, control.client, Deadline::never(),
                                                  [&] { return server->arrived(); });
    require(outcome == Outcome::ok, "the wait failed");
    serve();
  }

  static constexpr std::uint64_t kNumber = PortState::kFirstSession;
  const int first;
  alignas(4096) SessionControl control{};
  std::unique_ptr<ClientSession> client;
  std::shared_ptr<ServerSession> server;
  std::shared_ptr<PortState> port;
  std::vector<std::byte> served;  // the serving thread's
};

// One thread serves the client all the time.
struct Attended : Session {
  explicit Attended(int calls) {
    threads.emplace_back([this, calls] {
      for (int i = 0; i < calls; ++i) call(static_cast<std::byte>(i + 1));
    });
    threads.emplace_back([this, calls] {
      for (int i = 0; i < calls; ++i) attend();
    });
  }
};

// A thread that sleeps on several sessions at once (futex_multi_wait.cpp), of which this is one.
struct OnBell : Session {
  OnBell() {
    threads.emplace_back([this] { call(std::byte{1}); });
    threads.emplace_back([this] {
      auto& side = control.server;
      const std::uint32_t before = side.bell.load(std::memory_order_relaxed);
      Waiter::park_on_bell(side);
      if (!server->ready()) syscall(SYS_futex, side.bell.address(), FUTEX_WAIT, before, nullptr);
      // A futex orders nothing: who sees nothing yet looks again as PortState::release() does.
      if (!server->ready()) Waiter::park_on_descriptor(side);
      require(server->ready(), "woken for nothing");
      Waiter::unpark(side);
      serve();
    });
  }
};

// A thread that attends to the session leaves it to the others of the port, of which one waits for
// its doorbell.
struct HandedOver : Session {
  HandedOver() {
    port = std::make_shared<PortState>(PortLimits{}, WaitMode::block);
    port->sessions[kNumber].session = server;
    require(server->claim(), "it is new");
    threads.emplace_back([this] {
      call(std::byte{1});
      std::byte stop{1};
      syscall(SYS_sendto, first, &stop, 1, 0, nullptr, 0);
    });
    threads.emplace_back([this] {
      port->release(server);
      if (const auto item = port->take_waiting()) serve_and_release(item.session);
    });
    threads.emplace_back([this] {
      for (;;) {
        pollfd entry{.fd = first + 1, .events = POLLIN, .revents = 0};
        poll(&entry, 1, -1);
        std::byte packet{};
        syscall(SYS_recvfrom, first + 1, &packet, 1, 0, nullptr, nullptr);
        if (packet == std::byte{1}) return;
        if (const auto session = port->on_event(kNumber, EPOLLIN)) serve_and_release(session);
      }
    });
  }
  void serve_and_release(const call::SessionPointer& session) {
    Waiter::unpark(session->control().server);
    session->waiter().resume();
    serve();
    port->release(session);
  }
};

// The same, where the client rings for what is no request, that it has taken what the last reply
// brought, and then asks at once for something else.
struct LeftAsItsClientTells : Session {
  LeftAsItsClientTells() {
    port = std::make_shared<PortState>(PortLimits{}, WaitMode::block);
    port->sessions[kNumber].session = server;
    require(server->claim(), "it is new");
    threads.emplace_back([this] {
      give({.number = 0, .kind = call::Kind::done});
      give({.number = 1, .kind = call::Kind::request});
    });
    threads.emplace_back([this] {
      port->release(server);
      if (!port->take_waiting()) return;
      found.fetch_add(1);
      std::byte stop{1};
      syscall(SYS_sendto, first, &stop, 1, 0, nullptr, 0);
    });
    threads.emplace_back([this] {
      for (;;) {
        pollfd entry{.fd = first + 1, .events = POLLIN, .revents = 0};
        poll(&entry, 1, -1);
        std::byte packet{};
        syscall(SYS_recvfrom, first + 1, &packet, 1, 0, nullptr, nullptr);
        if (packet == std::byte{1}) return;
        if (port->on_event(kNumber, EPOLLIN) || port->take_waiting()) break;
      }
      found.fetch_add(1);
    });
    share(&found, sizeof found);
  }
  void give(call::Turn turn) {
    control.slot.turn.store(turn.pack(), std::memory_order_release);
    client->waiter().wake(control.client, control.server);
  }
  void finish() override { require(found.load() == 1, "found twice"); }
  std::atomic<int> found{0};
};

// A message that the client takes back where nobody has taken it yet.
struct TakenBack : Session {
  TakenBack() {
    threads.emplace_back([this] {
      const std::byte value{1};
      CallArguments arguments = message(value);
      arguments.until_taken = true;
      outcome = client->call(arguments, nullptr, Deadline::now(), SignalCount::now());
    });
    threads.emplace_back([this] {
      std::array<std::byte, kInlineBytes> data;
      Request request;
      if (!server->arrived() || !server->take_short(data.data(), request)) return;
      require(!request.wants_reply && request.data.size() == 1, "another message");
      served.push_back(data[0]);
    });
  }
  void finish() override {
    require(served.size() < 2, "served twice");
    if (outcome == Outcome::ok)
      require(served.size() == 1, "said to be taken, and was not");
    else
      require(served.empty(), "said not to be taken, and was");
  }
  Outcome outcome = Outcome::broken;
};

// The same of a request, whose client gives up waiting for the reply.
struct RequestTakenBack : Session {
  explicit RequestTakenBack(bool stays) : policy(stays) {
    threads.emplace_back([this] {
      const std::byte value{1};
      CallArguments arguments = message(value);
      arguments.retry_policy = &policy;
      std::array<std::byte, 8> reply{};
      CallResults results;
      results.buffer = reply;
      outcome = client->call(arguments, &results, Deadline::now(), SignalCount::now());
      dispatched = client->dispatched();
    });
    threads.emplace_back([this] {
      std::array<std::byte, kInlineBytes> data;
      Request request;
      if (!server->arrived() || !server->take_short(data.data(), request)) return;
      require(request.wants_reply && request.data.size() == 1, "another request");
      served.push_back(data[0]);
      server->reply_shortly({data.data(), 1}, 0);
    });
  }
  void finish() override {
    if (outcome == Outcome::ok || dispatched)
      require(served.size() == 1, "said to be taken, and was not");
    else
      require(served.empty(), "said not to be taken, and was");
    require(outcome == Outcome::ok || !policy.stays || !dispatched, "a client that stays has left");
  }

  struct Policy final : RetryPolicy {
    explicit Policy(bool to_stay) : stays(to_stay) {}
    bool stay(Outcome, Deadline& deadline) override {
      deadline = Deadline::never();
      return stays;
    }
    const bool stays;
  } policy;
  Outcome outcome = Outcome::broken;
  bool dispatched = false;
};

// While another thread closes the client.
struct RequestTakenBackByTwo : RequestTakenBack {
  RequestTakenBackByTwo() : RequestTakenBack(false) {
    threads.emplace_back([this] { client->give_up_request(); });
  }
};

// The client dies while it is served. Who serves wants to know, and may be gone itself as soon as
// it has said that it has served.
struct Observed : Session {
  struct Observer final : ClientDeathObserver {
    void client_gone(const Endpoint&) noexcept override {
      ++times;
      told.store(1, std::memory_order_release);
    }
    std::atomic<int> told{0};
    int times = 0;
  };
  explicit Observed(bool until_told) {
    share(&observer, sizeof observer);
    threads.emplace_back([this] { server->tell_gone(); });
    threads.emplace_back([this, until_told] {
      // A step, so that a fence of all threads may come before the next line; which is no step.
      static_cast<void>(server->gone.load(std::memory_order_relaxed));
      observer.times = 0;  // it is this thread's, until it is made known
      server->begin_serving(&observer);
      while (until_told && observer.told.load(std::memory_order_acquire) == 0) pause();
      server->end_serving();
      observer.times += 100;
    });
  }
  void finish() override { require(observer.times <= 101, "told twice"); }
  Observer observer;
};

template <class Kind, class... Arguments>
Check check(const char* name, Options options, Arguments... arguments) {
  return {.name = name,
          .make = [arguments...] { return std::make_unique<Kind>(arguments...); },
          .options = options};
}

std::vector<Check> checks() {
  return {
      check<Attended>("a call", {}, 1),
      check<Attended>("two calls", {}, 2),
      check<Attended>("a call, on descriptors", {.timeouts = 1}, 1),
      check<OnBell>("a call to who waits for several", {}),
      check<HandedOver>("a session is left to others", {}),
      check<LeftAsItsClientTells>("a session is left to others as its client tells", {}),
      check<TakenBack>("a message is taken back", {}),
      check<RequestTakenBack>("a request is taken back", {.fences_reach_all = true}, false),
      check<RequestTakenBack>("a client stays whose request is taken", {.fences_reach_all = true},
                              true),
      check<RequestTakenBackByTwo>("a request is taken back by two", {.fences_reach_all = true}),
      check<Observed>("a client dies while it is served", {.fences_reach_all = true}, true),
      check<Observed>("a client dies when it has been served", {.fences_reach_all = true}, false),
  };
}

TEST(ModelSession, EachRequestIsServedOnceAndItsReplyComes) {
  for (const Check& one : checks()) expect_right(one);
}

TEST(ModelSession, TheHeavyFenceIsNeeded) { expect_heavy_fences_matter(checks()); }

// The fence of who takes a request back is one for another process, which that system call is not.
TEST(ModelSession, TheFenceOfWhoTakesARequestBackIsNeeded) {
  expect_heavy_fences_matter(
      {check<RequestTakenBack>("a request is taken back", {.fences_reach_all = true}, false)});
}

TEST(ModelSession, EveryOrderIsNeeded) {
  expect_every_order_matters(
      checks(),
      {"call/session.hpp", "call/client_session.hpp", "call/client_session.cpp",
       "call/server_session.hpp", "call/server_session.cpp", "call/port.cpp", "wait/wake.cpp"},
      {{.function = "Waiter::ring_doorbell",
        .weaker = "release to relaxed",
        .because = "for those who ask the kernel what is in the socket, which no scenario does"},
       {.function = "ServerSession::release",
        .weaker = "acq_rel to acquire",
        .because = "behind the fence of parking, on which an owner's leaving should not rest"},
       {.function = "ServerSession::tell_gone",
        .weaker = "acquire to relaxed",
        .because = "before a fence of all threads, which is a system call and may be none",
        .line = "telling_.exchange"}});
}

}  // namespace
}  // namespace farcall::model
