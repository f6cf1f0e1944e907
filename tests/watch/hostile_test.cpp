// SPDX-License-Identifier: Apache-2.0
//
// A process may write what it likes into its own tables. It can lie about itself, and about nobody
// else, and does not harm who looks.
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <string>

#include "farcall/memory.hpp"
#include "farcall/observe.hpp"
#include "watch/ends.hpp"
#include "watch/flows.hpp"
#include "watch/text.hpp"

namespace farcall::test {
namespace {

using observe::Entry;
using observe::Kind;
using observe::Role;

observe::Table& table_of(const Entry& entry) {
  const auto counters = reinterpret_cast<std::uintptr_t>(entry.get()) & ~std::uintptr_t{0xffff};
  return *reinterpret_cast<observe::Table*>(counters - sizeof(observe::Table::identities));
}

void check(const std::vector<watch::End>& ends) {
  for (const watch::End& end : ends) {
    ASSERT_LT(static_cast<int>(end.kind), static_cast<int>(Kind::count_));
    ASSERT_NE(end.kind, Kind::none);
    ASSERT_LT(static_cast<int>(end.role), static_cast<int>(Role::count_));
    ASSERT_LT(static_cast<int>(end.carrier), static_cast<int>(observe::Carrier::count_));
    ASSERT_LE(end.name.size(), observe::kLongestName);
    ASSERT_LT(end.index, observe::kEntries);
    ASSERT_GE(end.peer, 0);
    for (const char byte : watch::printable(end.name))
      ASSERT_TRUE(static_cast<unsigned char>(byte) >= ' ' && byte != 0x7f);
  }
}

// A child that goes on writing over its tables, by `scribble`, while it is looked at.
template <class Scribble>
void look_at_scribbler(Scribble scribble) {
  Gate ready;
  const Child child([&] {
    const Entry entry({.kind = Kind::ring, .role = Role::client});
    observe::Table& table = table_of(entry);
    std::mt19937_64 random(1);
    ready.open();
    for (;;) scribble(table, random);
    return 0;
  });
  ready.wait();
  watch::Flows flows({.timed = true});
  for (int i = 0; i < 60; ++i) {
    std::vector<watch::Process> processes(1);
    const watch::Seen seen = watch::look(child.pid(), processes[0]);
    ASSERT_TRUE(seen == watch::Seen::yes || seen == watch::Seen::no_tables);
    ASSERT_NO_FATAL_FAILURE(check(processes[0].ends));
    flows.look(processes);
    for (const watch::Flow& flow : flows.flows()) {
      (void)watch::reason_text(flow.reason);
      (void)watch::percentile(flow.total.times, 99);
      ASSERT_EQ(flow.left.seen ? flow.left.pid : flow.right.pid, child.pid());
    }
  }
  EXPECT_EQ(::kill(child.pid(), 0), 0);
}

TEST(WatchHostile, TablesOfAnything) {
  look_at_scribbler([](observe::Table& table, std::mt19937_64& random) {
    auto* const words = reinterpret_cast<std::uint64_t*>(&table);
    for (std::size_t i = 0; i < sizeof table / sizeof *words; ++i)
      reinterpret_cast<volatile std::uint64_t*>(words)[i] = random();
  });
}

TEST(WatchHostile, EntriesOfAnythingInATableThatLooksSound) {
  look_at_scribbler([](observe::Table& table, std::mt19937_64& random) {
    auto& header = reinterpret_cast<observe::Header&>(table.identities[0]);
    header.used = {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}, random()};
    for (std::size_t i = 1; i < observe::kEntries; ++i) {
      observe::Identity& identity = table.identities[i];
      identity.generation = static_cast<std::uint32_t>(random()) & ~1U;
      identity.kind = static_cast<std::uint8_t>(random() % 12);
      identity.role = static_cast<std::uint8_t>(random());
      identity.carrier = static_cast<std::uint8_t>(random());
      identity.reason = static_cast<std::uint8_t>(random());
      identity.owner = random() % 2 == 0 ? ::getpid() : static_cast<std::int32_t>(random());
      identity.peer = static_cast<std::int32_t>(random());
      identity.session = random();
      identity.name_bytes = static_cast<std::uint32_t>(random());
      identity.fd = static_cast<std::int32_t>(random());
      for (char& byte : identity.name) byte = static_cast<char>(random());
      for (std::uint64_t* word = &table.counters[i].sent.watch;
           word < &table.counters[i].received.spare[0]; ++word)
        *word = random();
    }
  });
}

// Whoever says that it has somebody's memory must have it.
TEST(WatchHostile, TheMemoryOfOthersCannotBeClaimed) {
  const SharedMemory memory = SharedMemory::create(4096, "claimed");
  const Mapping mapping = memory.map();
  observe::Description end{.kind = Kind::ring, .role = Role::client};
  end.session = observe::inode_of(memory.fd());
  const Entry mine(end);
  observe::note_sent(mine.sent(), nullptr, 100);
  Gate ready;
  Gate done;
  const Child liar([&] {
    ::munmap(mapping.data(), mapping.size());
    observe::Description lie{.kind = Kind::ring, .role = Role::server};
    lie.session = end.session;
    lie.peer = ::getppid();
    const Entry entry(lie);
    observe::note_sent(entry.sent(), nullptr, 666);
    ready.open();
    done.wait();
    return 0;
  });
  ready.wait();
  std::vector<watch::Process> processes(2);
  ASSERT_EQ(watch::look(::getpid(), processes[0]), watch::Seen::yes);
  ASSERT_EQ(watch::look(liar.pid(), processes[1]), watch::Seen::yes);
  ASSERT_EQ(processes[0].ends.size(), 1U);
  ASSERT_EQ(processes[1].ends.size(), 1U);
  EXPECT_TRUE(processes[0].ends[0].session);
  EXPECT_FALSE(processes[1].ends[0].session);
  watch::Flows flows({.timed = false});
  flows.look(processes);
  ASSERT_EQ(flows.flows().size(), 2U);
  for (const watch::Flow& flow : flows.flows()) {
    if (flow.left.seen) {
      EXPECT_EQ(flow.left.pid, ::getpid());
      EXPECT_EQ(flow.right.pid, 0);
      EXPECT_EQ(flow.total.back.bytes, 0U);
    } else {
      EXPECT_EQ(flow.right.pid, liar.pid());
      EXPECT_EQ(flow.total.back.bytes, 666U);
    }
  }
  done.open();
}

}  // namespace
}  // namespace farcall::test
