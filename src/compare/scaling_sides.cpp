// SPDX-License-Identifier: Apache-2.0
//
// A slot of many clients: the process that starts and watches, the clients, and the servers.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "compare/pipe.hpp"
#include "compare/sides.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

// Messages carry who sends them above their number, so that one server can check all.
constexpr unsigned kNumberBits = 40;
constexpr std::uint64_t numbered_from(unsigned client) {
  return std::uint64_t{client} << kNumberBits;
}

class ManyService final : public Service {
 public:
  ManyService(const SlotPlan& plan, Board& board, unsigned callers)
      : board_(board), payload_(plan.key, board.last_short), callers_(callers) {
    for (unsigned i = 0; i < callers; ++i) last_[i].number.store(numbered_from(i));
  }
  // Of a mechanism with several threads they all come here, each with another client.
  bool answer(std::span<std::byte> message) override {
    try {
      const std::uint64_t sequence = payload_.sequence_of(message);
      const std::uint64_t caller = sequence >> kNumberBits;
      if (caller >= callers_) throw PayloadError("a message of a client that does not exist");
      // relaxed: a client has one call at a time.
      std::atomic<std::uint64_t>& last = last_[caller].number;
      const std::uint64_t expected = last.load(std::memory_order_relaxed) + 1;
      last.store(expected, std::memory_order_relaxed);
      if (!payload_.answer(message, expected)) return true;
    } catch (const std::exception& error) {
      board_.fail(Role::server, error.what());
      ::_exit(1);  // threads of the library cannot be ended otherwise
    }
    return finished_.fetch_add(1) + 1 != callers_;
  }

 private:
  struct alignas(64) Last {
    std::atomic<std::uint64_t> number{0};
  };
  Board& board_;
  Payload payload_;
  unsigned callers_;
  std::array<Last, kMostClients + 1> last_;
  std::atomic<unsigned> finished_{0};
};

std::int64_t await_begin(const Board& board) {
  std::int64_t begin = 0;
  while ((begin = board.begin.load(std::memory_order_acquire)) == 0) pause(1'000'000);
  return begin;
}

// Calls from the warm-up on without a pause, so that the common start finds all of them busy.
// `room` is for samples; a client with more calls than that keeps any of them with the same chance.
void call_for_a_while(const SlotPlan& plan, Board& board, unsigned index, Caller& caller,
                      Endpoint& end, std::span<float> room) {
  const std::int64_t begin = await_begin(board);
  const std::int64_t until = begin + plan.effort.rtt_ns;
  std::int64_t after = now();
  while (after < begin) caller.call(end, after);
  std::minstd_rand random(index + 1);
  Board::Client seen{};
  const Usage used = Usage::now();
  while (after < until || seen.calls == 0) {
    const auto ns = static_cast<float>(caller.call(end, after));
    const std::uint64_t place = seen.calls < room.size() ? seen.calls : random() % (seen.calls + 1);
    if (place < room.size()) room[place] = ns;
    ++seen.calls;
  }
  seen.used = Usage::now() - used;
  seen.ns = after - begin;
  seen.samples = std::min<std::uint64_t>(seen.calls, room.size());
  board.clients[index] = seen;
  caller.call(end, after, true);
}

class ScalingRun {
 public:
  ScalingRun(const SlotPlan& plan, Board& board, std::span<float> samples)
      : plan_(plan), crowd_(plan.conditions.crowd), board_(board), samples_(samples) {}

  void run() {
    if (crowd_.idle != 0) prepare_idle();
    make();
    for (unsigned i = 0; i < crowd_.servers; ++i) fork_server(i);
    for (unsigned i = 0; i < crowd_.clients; ++i) fork_client(i);
    if (crowd_.idle != 0)
      look_at_idle();
    else
      await_opened(crowd_.servers + crowd_.clients);
    const std::int64_t begin = now() + plan_.effort.warmup_ns;
    board_.begin.store(begin, std::memory_order_release);
    sleep_until(begin);
    const Usage used = used_by_servers();
    sleep_until(begin + plan_.effort.rtt_ns);
    board_.rtt[1] = used_by_servers() - used;
    if (crowd_.idle != 0) open_gate();
    await_ends(callers_);
    board_.client_done.store(true, std::memory_order_release);
    await_ends(servers_);
    take();
  }

 private:
  static constexpr unsigned kSpareDescriptors = 256;
  // Until who waits adaptively has gone to sleep.
  static constexpr std::int64_t kSettle = 200'000'000;

  void prepare_idle() {
    raise_descriptor_limit(crowd_.idle + kSpareDescriptors);
    gate_ = make_pipe();
  }
  void make() {
    Conditions conditions = plan_.conditions;
    conditions.crowd = {crowd_.clients_of_each(), 1, crowd_.idle};
    board_.make_ns = 0;
    for (unsigned i = 0; i < crowd_.servers; ++i) {
      conditions.name = plan_.conditions.name + "-" + std::to_string(i);
      connections_.push_back(plan_.row->make(conditions));
    }
  }
  void fork_server(unsigned index) {
    servers_.push_back(fork_side(board_, Role::server, [&] {
      const unsigned callers = crowd_.clients_of_each() + (crowd_.idle != 0 ? 1 : 0);
      ManyService service(plan_, board_, callers);
      const Buffer message(plan_.conditions.message_bytes);
      const auto end = knowing_limits([&] { return connections_[index]->open(Role::server); });
      board_.opened.fetch_add(1);
      end->serve(service, message.bytes());
      while (!board_.client_done.load(std::memory_order_acquire)) pause(1'000'000);
    }));
  }
  void fork_client(unsigned index) {
    callers_.push_back(fork_side(board_, Role::client, [&] {
      const unsigned of_each = crowd_.clients_of_each();
      Caller caller(plan_, board_, numbered_from(index % of_each));
      const auto end = connections_[index / of_each]->open_client(index % of_each);
      board_.opened.fetch_add(1);
      call_for_a_while(plan_, board_, index, caller, *end, room_of(index));
    }));
  }
  // Opens the idle connections, and calls once by each so that all that belongs to one is there.
  void fork_idle() {
    callers_.push_back(fork_side(board_, Role::client, [&] {
      // One who calls by several ends.
      Caller caller(plan_, board_, numbered_from(crowd_.clients));
      await_gate();
      std::vector<std::unique_ptr<Endpoint>> ends;
      std::int64_t after = 0;
      knowing_limits([&] {
        for (unsigned i = 0; i < crowd_.idle; ++i)
          ends.push_back(connections_[0]->open_client(crowd_.clients + i));
        for (const auto& end : ends) caller.call(*end, after);
      });
      board_.opened.fetch_add(1);
      await_gate();
      caller.call(*ends.front(), after, true);
    }));
  }

  // Says what usually ends the making of thousands of connections.
  template <class Body>
  std::invoke_result_t<Body> knowing_limits(Body body) const {
    try {
      return body();
    } catch (const std::exception& error) {
      if (crowd_.idle == 0) throw;
      std::string text =
          fmt::format("{}; of at most {} descriptors (ulimit -Hn) {} are taken here", error.what(),
                      raise_descriptor_limit(0), descriptors_of(::getpid()));
      if (!servers_.empty())
        text += fmt::format(" and {} in the server", descriptors_of(servers_.front()));
      throw std::runtime_error(text + ": where that is all, raise the limit or ask for fewer");
    }
  }

  void look_at_idle() {
    while (board_.opened.load() < crowd_.clients) look_after_children();
    const pid_t server = servers_.front();
    fork_idle();
    const pid_t sides[2] = {callers_.back(), server};
    std::int64_t bytes[2];
    std::int64_t descriptors[2];
    for (std::size_t i = 0; i < 2; ++i) {
      bytes[i] = memory_of(sides[i]);
      descriptors[i] = descriptors_of(sides[i]);
    }
    open_gate();
    await_opened(2 + crowd_.clients);
    pause(kSettle);
    std::int64_t cpu[2];
    for (std::size_t i = 0; i < 2; ++i) {
      board_.idle.bytes[i] = memory_of(sides[i]) - bytes[i];
      board_.idle.descriptors[i] = descriptors_of(sides[i]) - descriptors[i];
      cpu[i] = usage_of(sides[i]).cpu_ns;
    }
    const std::int64_t begin = now();
    sleep_until(begin + plan_.effort.rtt_ns);
    for (std::size_t i = 0; i < 2; ++i) board_.idle.cpu_ns[i] = usage_of(sides[i]).cpu_ns - cpu[i];
    board_.idle.ns = now() - begin;
  }

  // Who waits here takes no processor time, which polling would.
  void open_gate() const {
    const char go = 0;
    if (::write(gate_.second.get(), &go, 1) != 1) throw_errno("open the gate");
  }
  void await_gate() const {
    char go = 0;
    while (::read(gate_.first.get(), &go, 1) < 0 && errno == EINTR) {
    }
  }

  // The tool ends this process, and with it all others, where that takes too long.
  void await_opened(unsigned processes) {
    while (board_.opened.load() < processes) look_after_children();
  }
  static void look_after_children() {
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) > 0) throw_ended(status);
    pause(1'000'000);
  }
  static void await_ends(const std::vector<pid_t>& processes) {
    for (std::size_t left = processes.size(); left != 0;) {
      int status = 0;
      const pid_t ended = ::waitpid(-1, &status, 0);
      if (ended < 0 && errno == EINTR) continue;
      if (ended < 0) throw_errno("wait for a process");
      const bool one_of_these =
          std::find(processes.begin(), processes.end(), ended) != processes.end();
      if (!one_of_these || status != 0) throw_ended(status);
      --left;
    }
  }
  [[noreturn]] static void throw_ended(int status) {
    throw std::runtime_error(
        WIFSIGNALED(status)
            ? fmt::format("a process was killed by signal {}", WTERMSIG(status))
            : fmt::format("a process ended early, with exit code {}", WEXITSTATUS(status)));
  }
  static void sleep_until(std::int64_t moment) {
    const std::int64_t left = moment - now();
    if (left > 0) pause(left);
  }
  [[nodiscard]] Usage used_by_servers() const {
    Usage sum;
    for (const pid_t server : servers_) sum += usage_of(server);
    return sum;
  }

  [[nodiscard]] std::span<float> room_of(unsigned client) const {
    const std::size_t each = samples_.size() / crowd_.clients;
    return samples_.subspan(client * each, each);
  }
  // The samples of all, one after another.
  void take() {
    for (unsigned i = 0; i < crowd_.clients; ++i) {
      const Board::Client& client = board_.clients[i];
      const auto from = room_of(i).first(client.samples);
      std::copy(from.begin(), from.end(),
                samples_.begin() + static_cast<std::ptrdiff_t>(board_.samples));
      board_.samples += client.samples;
      board_.rtt_calls += client.calls;
      board_.rtt_ns = std::max(board_.rtt_ns, client.ns);
      board_.rtt[0] += client.used;
    }
  }

  const SlotPlan& plan_;
  const Crowd crowd_;
  Board& board_;
  std::span<float> samples_;
  // Before the idle connections: opened for them to be made, and to end.
  std::pair<UniqueFd, UniqueFd> gate_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<pid_t> servers_;
  std::vector<pid_t> callers_;  // the clients, and who holds the idle connections
};

}  // namespace

void run_scaling(const SlotPlan& plan, Board& board, std::span<float> samples) {
  ScalingRun(plan, board, samples).run();
}

}  // namespace farcall::compare
