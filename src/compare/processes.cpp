// SPDX-License-Identifier: Apache-2.0
//
// The two processes of a slot: where they run, what they open, how they end.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "compare/sides.hpp"
#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

void place(const SlotPlan& plan, Role role) {
  if (const auto processor = plan.processor[static_cast<std::size_t>(role)]) pin_to(*processor);
}

int server_main(const SlotPlan& plan, Board& board, Connection& connection) noexcept {
  return guarded(board, Role::server, [&] {
    place(plan, Role::server);
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::server)],
                           [&] { return connection.open(Role::server); });
    run_server(plan, board, *end);
    // Some libraries send in the background and would lose the last reply by closing now.
    while (!board.client_done.load(std::memory_order_acquire)) pause(100'000);
    board.server_done.store(true, std::memory_order_release);
  });
}

pid_t fork_server(const SlotPlan& plan, Board& board, Connection& connection) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before that
    ::_exit(server_main(plan, board, connection));
  }
  board.server_pid.store(pid, std::memory_order_release);
  return pid;
}

}  // namespace

int client_main(const SlotPlan& plan, Board& board, std::span<float> samples) noexcept {
  pid_t server = 0;
  const int code = guarded(board, Role::client, [&] {
    place(plan, Role::client);
    if (plan.conditions.readers != 0) return run_broadcast(plan, board, samples);
    plan.row->prepare();
    const auto connection = timed(board.make_ns, [&] { return plan.row->make(plan.conditions); });
    const bool alone = plan.row->info().one_process;
    if (!alone) server = fork_server(plan, board, *connection);
    const auto end = timed(board.open_ns[static_cast<std::size_t>(Role::client)],
                           [&] { return connection->open(Role::client); });
    board.fragmented = end->fragmented();
    if (alone)
      run_alone(plan, board, samples, *end);
    else
      run_client(plan, board, samples, *end);
    board.client_done.store(true, std::memory_order_release);
    if (!alone) ::waitpid(server, nullptr, 0);
  });
  return code;
}

}  // namespace farcall::compare
