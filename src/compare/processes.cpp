// SPDX-License-Identifier: Apache-2.0
//
// The two processes of a slot: where they run, what they open, how they end.
#include <sys/wait.h>

#include <optional>

#include "compare/sides.hpp"
#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

void place(const SlotPlan& plan, Role role) {
  if (const auto processor = plan.processor[static_cast<std::size_t>(role)]) pin_to(*processor);
}

pid_t fork_server(const SlotPlan& plan, Board& board, Connection& connection) {
  const pid_t pid = fork_side(board, Role::server, [&] {
    place(plan, Role::server);
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::server)],
                           [&] { return connection.open(Role::server); });
    if (plan.dead_peer) return run_dying_server(plan, board, *end);
    run_server(plan, board, *end);
    // Some libraries send in the background and would lose the last reply by closing now.
    while (!board.client_done.load(std::memory_order_acquire)) pause(100'000);
    board.server_done.store(true, std::memory_order_release);
  });
  board.server_pid.store(pid, std::memory_order_release);
  return pid;
}

// The server of a client that may fail: it is ended before what both hold is destroyed, which may
// wait for it.
class ServerGuard {
 public:
  explicit ServerGuard(pid_t server) : server_(server) {}
  ServerGuard(const ServerGuard&) = delete;
  ServerGuard& operator=(const ServerGuard&) = delete;
  ~ServerGuard() {
    if (ended_) return;
    // Its own error, if it has one, tells more than that it was killed.
    constexpr int kGraceMs = 100;
    for (int i = 0; i < kGraceMs; ++i) {
      if (::waitpid(server_, nullptr, WNOHANG) != 0) return;
      pause(1'000'000);
    }
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
  }
  void wait() {
    ::waitpid(server_, nullptr, 0);
    ended_ = true;
  }

 private:
  const pid_t server_;
  bool ended_ = false;
};

}  // namespace

int client_main(const SlotPlan& plan, Board& board, std::span<float> samples) noexcept {
  return guarded(board, Role::client, [&] {
    place(plan, Role::client);
    plan.row->prepare();
    if (plan.conditions.readers != 0) return run_broadcast(plan, board, samples);
    if (plan.conditions.crowd.clients != 0) return run_scaling(plan, board, samples);
    const auto connection = timed(board.make_ns, [&] { return plan.row->make(plan.conditions); });
    note_helpers(board, *connection);
    const bool alone = plan.row->info().one_process;
    std::optional<ServerGuard> server;
    if (!alone) server.emplace(fork_server(plan, board, *connection));
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::client)],
                           [&] { return connection->open(Role::client); });
    board.fragmented = end->fragmented();
    if (plan.dead_peer)
      run_bereaved_client(plan, board, *end);
    else if (alone)
      run_alone(plan, board, samples, *end);
    else
      run_client(plan, board, samples, *end);
    board.client_done.store(true, std::memory_order_release);
    if (!alone) server->wait();
  });
}

}  // namespace farcall::compare
