// SPDX-License-Identifier: Apache-2.0
//
// What is found of a process as a whole.
#include "doctor/process.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor/fake_tree.hpp"
#include "doctor/placement.hpp"
#include "harness/eventually.hpp"
#include "harness/forked.hpp"
#include "harness/thread_state.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Library;
using doctor::Process;
using doctor::Severity;
using doctor::Tree;

Findings examine(const Tree& tree, pid_t pid) {
  Findings findings;
  const auto process = doctor::read_process(tree, pid);
  if (process) doctor::examine_process(tree, *process, findings);
  expect_sentences(findings);
  return findings;
}

TEST(DoctorProcess, IsFineWhereNothingIsWrong) {
  FakeTree fake;
  fake.process(7, "x");
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "");
}

TEST(DoctorProcess, ThatIsNotThereIsNone) {
  const FakeTree empty;
  EXPECT_FALSE(doctor::read_process(empty.tree(), 7));
  EXPECT_FALSE(doctor::read_process(empty.tree(), -1));
}

TEST(DoctorProcess, IsReadThoughItsNameHasBracketsAndBlanks) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/stat", stat_of(7, ") R 9 (a b", 15, SCHED_OTHER));
  const auto process = doctor::read_process(fake.tree(), 7);
  ASSERT_TRUE(process);
  EXPECT_EQ(process->nice, 15);
}

TEST(DoctorProcess, MayBeStoppedOrTracedOrEnded) {
  const auto in_state = [](const char* state) {
    FakeTree fake;
    fake.process(7, "x").file("/proc/7/status", status_of(7, "x", "State", state));
    return ids(examine(fake.tree(), 7));
  };
  EXPECT_EQ(in_state("T (stopped)"), "stopped ");
  EXPECT_EQ(in_state("t (tracing stop)"), "stopped ");
  EXPECT_EQ(in_state("Z (zombie)"), "ended ");
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/status", status_of(7, "x", "TracerPid", "99"));
  const Findings findings = examine(fake.tree(), 7);
  ASSERT_EQ(ids(findings), "traced ");
  EXPECT_NE(findings[0].cause.find("Process 99"), std::string::npos);
}

TEST(DoctorProcess, MayBeSetBehindOthers) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/stat", stat_of(7, "x", 19, SCHED_OTHER));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "nice ");
  fake.file("/proc/7/stat", stat_of(7, "x", 0, SCHED_IDLE));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "scheduling-class ");
}

TEST(DoctorProcess, MayBePinned) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/status", status_of(7, "x", "Cpus_allowed_list", "3"));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "pinned-to-one-processor ");
  fake.file("/proc/7/stat", stat_of(7, "x", 0, SCHED_FIFO));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "real-time-on-one-processor ");
}

TEST(DoctorProcess, MayRunALibraryThatWasReplaced) {
  FakeTree fake;
  fake.process(7, "x").file(
      "/proc/7/maps",
      "7f0000000000-7f0000001000 r-xp 00000000 08:01 77 /a/libfarcall-preload.so (deleted)\n");
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "library-replaced ");
}

TEST(DoctorProcess, MayGoRoundTheLibraryByIoUring) {
  FakeTree fake;
  fake.process(7, "x").descriptor(7, 4, "anon_inode:[io_uring]");
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "io-uring ");
}

TEST(DoctorProcess, MayHaveAnotherLibraryInFrontOfTheSockets) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/environ",
                            std::string_view("A=b\0LD_PRELOAD=/usr/lib/libvma.so:/x\0", 38));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "other-interposer ");
}

TEST(DoctorProcess, MayHaveConfinedItselfButNotIfItsParentIsConfinedToo) {
  FakeTree fake;
  fake.process(1, "parent").process(7, "x");
  fake.file("/proc/7/status", status_of(7, "x", "Seccomp", "2"));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "confined ");
  fake.file("/proc/1/status", status_of(1, "parent", "Seccomp", "2"));
  EXPECT_EQ(ids(examine(fake.tree(), 7)), "");
}

TEST(DoctorProcess, TellsWhetherItHasTheLibrary) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/maps",
                            "7f0000000000-7f0000001000 r-xp 00000000 08:01 7 /lib/libc.so.6\n");
  EXPECT_EQ(doctor::read_process(fake.tree(), 7)->library, Library::absent);
  fake.file("/proc/7/maps", "");  // of somebody else, or a kernel thread
  EXPECT_EQ(doctor::read_process(fake.tree(), 7)->library, Library::unknown);
}

// --- where two of them may run

Findings place(const FakeTree& fake) {
  Findings findings;
  doctor::judge_placement(fake.tree(), *doctor::read_process(fake.tree(), 7),
                          *doctor::read_process(fake.tree(), 8), findings);
  expect_sentences(findings);
  return findings;
}

void allow(FakeTree& fake, const char* one, const char* other) {
  fake.process(7, "one").process(8, "other");
  fake.file("/proc/7/status", status_of(7, "one", "Cpus_allowed_list", one));
  fake.file("/proc/8/status", status_of(8, "other", "Cpus_allowed_list", other));
}

TEST(DoctorPlacement, IsFineWhereBothMayRunAnywhere) {
  FakeTree fake;
  fake.process(7, "one").process(8, "other");
  EXPECT_EQ(ids(place(fake)), "");
}

TEST(DoctorPlacement, IsFoundWhereBothArePinnedToOneProcessor) {
  FakeTree fake;
  allow(fake, "2", "2");
  const Findings findings = place(fake);
  ASSERT_EQ(ids(findings), "same-processor ");
  EXPECT_EQ(findings[0].about, "one (process 7) and other (process 8)");
}

TEST(DoctorPlacement, IsFoundWhereBothArePinnedToOneCore) {
  FakeTree fake;
  allow(fake, "0", "2");
  fake.file("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n");
  EXPECT_EQ(ids(place(fake)), "same-core ");
}

TEST(DoctorPlacement, IsFoundWhereEachHasANodeOfItsOwn) {
  FakeTree fake;
  allow(fake, "0-1", "2-3");
  fake.file("/sys/devices/system/node/node0/cpulist", "0-1\n")
      .file("/sys/devices/system/node/node1/cpulist", "2-3\n");
  const Findings findings = place(fake);
  ASSERT_EQ(ids(findings), "different-nodes ");
  EXPECT_EQ(findings[0].severity, Severity::warning);
}

// --- processes that really are so

// A child that waits.
struct Waiting : Forked {
  Waiting()
      : Forked([] {
          for (;;) ::pause();
        }) {
    EXPECT_TRUE(eventually([&] { return is_asleep(pid()); }));
  }
};

TEST(DoctorProcess, IsSeenStopped) {
  const Waiting child;
  ::kill(child.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  EXPECT_NE(find(examine(Tree(), child.pid()), "stopped"), nullptr);
  ::kill(child.pid(), SIGCONT);
}

// Set from outside, so that it has run before it gets little of the processor.
TEST(DoctorProcess, IsSeenPinnedAndNice) {
  const Waiting child;
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  unsigned first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  ASSERT_EQ(::sched_setaffinity(child.pid(), sizeof set, &set), 0);
  ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(child.pid()), 19), 0);
  const Findings findings = examine(Tree(), child.pid());
  EXPECT_NE(find(findings, "pinned-to-one-processor"), nullptr) << ids(findings);
  EXPECT_NE(find(findings, "nice"), nullptr) << ids(findings);
}

TEST(DoctorProcess, IsSeenInAnotherClass) {
  const Waiting child;
  const sched_param none{};
  ASSERT_EQ(::sched_setscheduler(child.pid(), SCHED_BATCH, &none), 0);
  EXPECT_NE(find(examine(Tree(), child.pid()), "scheduling-class"), nullptr);
}

TEST(DoctorProcess, IsSeenTraced) {
  const Waiting child;
  if (::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr) != 0)
    GTEST_SKIP() << "ptrace is not permitted";
  const Findings findings = examine(Tree(), child.pid());
  const doctor::Finding* const traced = find(findings, "traced");
  ASSERT_NE(traced, nullptr) << ids(findings);
  EXPECT_NE(traced->cause.find(std::to_string(::getpid())), std::string::npos);
}

TEST(DoctorProcess, IsSeenWithoutTheLibrary) {
  const Waiting child;
  const auto process = doctor::read_process(Tree(), child.pid());
  ASSERT_TRUE(process);
  EXPECT_EQ(process->library, Library::absent);
  EXPECT_EQ(process->user, ::geteuid());
  EXPECT_EQ(process->parent, ::getpid());
  EXPECT_GE(process->descriptors, 3U);
}

// Who reads there may be kept waiting by the process: somebody else does it.
TEST(DoctorProcess, IsReadWithoutTouchingItsMemoryWhereThatIsReadForIt) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/environ", "A=in the file");
  doctor::Tree tree = fake.tree();
  tree.read_memory_by([](pid_t pid, std::string_view file) -> std::optional<std::string> {
    if (pid != 7 || file != "environ") return std::nullopt;
    return std::string("A=read for it");
  });
  const auto process = doctor::read_process(tree, 7);
  ASSERT_TRUE(process);
  EXPECT_EQ(process->library, doctor::Library::unknown);
  EXPECT_EQ(process->variable("A"), "read for it");
}

}  // namespace
}  // namespace farcall::test
