// SPDX-License-Identifier: Apache-2.0
#include "compare/preloaded.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "compare/preload_library.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

// A plan without pointers. Both ends are the same program, so it needs no other form.
struct PlanImage {
  char mechanism[64];
  char wait[16];
  char name[64];
  std::size_t message_bytes;
  std::size_t depth_bytes;
  Crowd crowd;
  int processor[2];  // -1: any
  Effort effort;
  std::uint64_t key;
  bool measure_depth;
  std::uint64_t depth;
  int trace;  // a Role, -1: none
  bool dead_peer;
  int board;
  int samples;
};

void put(std::span<char> to, const std::string& text) {
  if (text.size() >= to.size()) throw MisuseError("a name is too long: " + text);
  std::memcpy(to.data(), text.c_str(), text.size() + 1);
}

PlanImage image_of(const SlotPlan& plan, int board, int samples) {
  PlanImage image{};
  put(image.mechanism, plan.row->info().mechanism);
  put(image.wait, plan.row->info().wait);
  put(image.name, plan.conditions.name);
  image.message_bytes = plan.conditions.message_bytes;
  image.depth_bytes = plan.conditions.depth_bytes;
  image.crowd = plan.conditions.crowd;
  for (std::size_t i = 0; i < 2; ++i) image.processor[i] = plan.processor[i].value_or(-1);
  image.effort = plan.effort;
  image.key = plan.key;
  image.measure_depth = plan.measure_depth;
  image.depth = plan.depth;
  image.trace = plan.trace ? static_cast<int>(*plan.trace) : -1;
  image.dead_peer = plan.dead_peer;
  image.board = board;
  image.samples = samples;
  return image;
}

// One that the program to be executed keeps.
int inherited(int fd) {
  const int copy = ::dup(fd);
  if (copy < 0) throw_errno("dup");
  return copy;
}

}  // namespace

int execute_slot(const SlotPlan& plan, int board, int samples, Board& errors) noexcept {
  try {
    const PlanImage image = image_of(plan, inherited(board), inherited(samples));
    const int file = ::memfd_create("farcall-plan", 0);
    if (file < 0) throw_errno("memfd_create");
    if (::write(file, &image, sizeof image) != static_cast<ssize_t>(sizeof image))
      throw_errno("write the plan of a slot");
    if (::setenv("LD_PRELOAD", preload_list(find_library()).c_str(), 1) != 0) throw_errno("setenv");
    std::string number = std::to_string(file);
    char name[] = "farcall";
    char command[] = "compare-slot";
    char* const words[] = {name, command, number.data(), nullptr};
    ::execv("/proc/self/exe", words);
    throw_errno("execute a slot");
  } catch (const std::exception& error) {
    errors.fail(Role::client, error.what());
  }
  return 1;
}

int slot_main(int plan) {
  PlanImage image;
  if (::pread(plan, &image, sizeof image, 0) != static_cast<ssize_t>(sizeof image))
    throw SystemError(EINVAL, "read the plan of a slot");
  ::close(plan);
  const Mapping board = SharedMemory::adopt(UniqueFd(image.board)).map();
  const Mapping samples = SharedMemory::adopt(UniqueFd(image.samples)).map();
  const RowList list = all_rows(image.crowd.clients != 0 ? Workload::scaling : Workload::pair);
  for (const auto& row : list.rows) {
    if (row->info().mechanism != image.mechanism || row->info().wait != image.wait) continue;
    SlotPlan made{.row = row.get(),
                  .conditions = {.message_bytes = image.message_bytes,
                                 .depth_bytes = image.depth_bytes,
                                 .name = image.name,
                                 .crowd = image.crowd},
                  .processor = {},
                  .effort = image.effort,
                  .key = image.key,
                  .measure_depth = image.measure_depth,
                  .depth = image.depth,
                  .trace = {},
                  .dead_peer = image.dead_peer};
    for (std::size_t i = 0; i < 2; ++i)
      if (image.processor[i] >= 0) made.processor[i] = image.processor[i];
    if (image.trace >= 0) made.trace = static_cast<Role>(image.trace);
    return client_main(made, *reinterpret_cast<Board*>(board.data()),
                       {reinterpret_cast<float*>(samples.data()), samples.size() / sizeof(float)});
  }
  throw MisuseError(fmt::format("there is no row {}", image.mechanism));
}

}  // namespace farcall::compare
