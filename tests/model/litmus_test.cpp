// SPDX-License-Identifier: Apache-2.0
//
// The checker itself: small programs of which the standard says what can come of them. Each test
// names all outcomes, and there must be no other and none less.
#include <set>
#include <string>

#include "model/checker/checker.hpp"

namespace farcall::model {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr auto acq_rel = std::memory_order_acq_rel;
constexpr auto seq_cst = std::memory_order_seq_cst;

struct Words {
  std::atomic<int> x{0};
  std::atomic<int> y{0};
  std::atomic<int> z{0};
  int data = 0;
};

// What threads have read.
using Seen = int[4];

struct Program : Scenario {
  using Thread = void (*)(Words&, Seen&);
  Program(std::initializer_list<Thread> bodies, std::set<std::string>& outcomes)
      : outcomes_(outcomes) {
    share(&words_, sizeof words_);
    for (const Thread body : bodies) threads.emplace_back([this, body] { body(words_, seen_); });
  }
  void finish() override {
    std::string all;
    for (unsigned i = 0; i < 4; ++i)
      if (seen_[i] >= 0) all += std::to_string(seen_[i]);
    outcomes_.insert(all);
  }

 protected:
  Words words_;
  Seen seen_{-1, -1, -1, -1};
  std::set<std::string>& outcomes_;
};

// The same, where the outcome is what the words hold in the end.
struct Final : Program {
  using Program::Program;
  void finish() override {
    outcomes_.insert(std::to_string(words_.x.load()) + std::to_string(words_.y.load()));
  }
};

template <class Kind = Program>
std::set<std::string> outcomes(std::initializer_list<Program::Thread> bodies,
                               const Options& options = {}) {
  std::set<std::string> all;
  const Result result = explore([&] { return std::make_unique<Kind>(bodies, all); }, options);
  if (!result.failure.empty()) return {result.failure.substr(0, result.failure.find('\n'))};
  EXPECT_TRUE(result.complete);
  return all;
}
using Set = std::set<std::string>;

// Store buffering.
TEST(ModelLitmus, StoresAreBufferedWithoutFences) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1, release), r[0] = w.y.load(acquire); },
                      [](Words& w, Seen& r) { w.y.store(1, release), r[1] = w.x.load(acquire); }}),
            (Set{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, FullFencesEmptyStoreBuffers) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) {
                        w.x.store(1, relaxed);
                        std::atomic_thread_fence(seq_cst);
                        r[0] = w.y.load(relaxed);
                      },
                      [](Words& w, Seen& r) {
                        w.y.store(1, relaxed);
                        std::atomic_thread_fence(seq_cst);
                        r[1] = w.x.load(relaxed);
                      }}),
            (Set{"01", "10", "11"}));
}

TEST(ModelLitmus, OneFenceAloneDoesNotEmptyThem) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) {
                        w.x.store(1, relaxed);
                        std::atomic_thread_fence(seq_cst);
                        r[0] = w.y.load(relaxed);
                      },
                      [](Words& w, Seen& r) {
                        w.y.store(1, relaxed);
                        std::atomic_thread_fence(acq_rel);
                        r[1] = w.x.load(relaxed);
                      }}),
            (Set{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, SeqCstOperationsAreInOneOrder) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1), r[0] = w.y.load(); },
                      [](Words& w, Seen& r) { w.y.store(1), r[1] = w.x.load(); }}),
            (Set{"01", "10", "11"}));
}

TEST(ModelLitmus, ASeqCstStoreDoesNotOrderAnAcquireOfAnotherWord) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1), r[0] = w.y.load(acquire); },
                      [](Words& w, Seen& r) { w.y.store(1), r[1] = w.x.load(acquire); }}),
            (Set{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, AFenceAndSeqCstOperationsAreInOneOrder) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1), r[0] = w.y.load(); },
                      [](Words& w, Seen& r) {
                        w.y.store(1, relaxed);
                        std::atomic_thread_fence(seq_cst);
                        r[1] = w.x.load(relaxed);
                      }}),
            (Set{"01", "10", "11"}));
}

// Message passing.
TEST(ModelLitmus, AMessageIsSeenWithItsFlag) {
  EXPECT_EQ(
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(1, release); },
                [](Words& w, Seen& r) { r[0] = w.y.load(acquire), r[1] = w.x.load(relaxed); }}),
      (Set{"00", "01", "11"}));
}

TEST(ModelLitmus, ARelaxedFlagBringsNoMessage) {
  EXPECT_EQ(
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(1, relaxed); },
                [](Words& w, Seen& r) { r[0] = w.y.load(acquire), r[1] = w.x.load(relaxed); }}),
      (Set{"00", "01", "10", "11"}));
  EXPECT_EQ(
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(1, release); },
                [](Words& w, Seen& r) { r[0] = w.y.load(relaxed), r[1] = w.x.load(relaxed); }}),
      (Set{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, FencesMakeRelaxedFlagsBringMessages) {
  EXPECT_EQ(outcomes({[](Words& w, Seen&) {
                        w.x.store(1, relaxed);
                        std::atomic_thread_fence(release);
                        w.y.store(1, relaxed);
                      },
                      [](Words& w, Seen& r) {
                        r[0] = w.y.load(relaxed);
                        std::atomic_thread_fence(acquire);
                        r[1] = w.x.load(relaxed);
                      }}),
            (Set{"00", "01", "11"}));
}

// One may come before the other in the order of seq_cst, whatever a relaxed word tells of them.
TEST(ModelLitmus, ARelaxedFlagOrdersNoSeqCstOperations) {
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { w.x.store(1), w.y.store(1, relaxed); },
                      [](Words& w, Seen& r) { r[0] = w.y.load(relaxed), r[1] = w.x.load(); }}),
            (Set{"00", "01", "10", "11"}));
}

TEST(ModelLitmus, AReleaseSequenceGoesOnThroughUpdates) {
  EXPECT_EQ(
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(1, release); },
                [](Words& w, Seen&) { w.y.fetch_add(1, relaxed); },
                [](Words& w, Seen& r) { r[0] = w.y.load(acquire), r[1] = w.x.load(relaxed); }}),
      (Set{"00", "01", "10", "11", "21"}));
}

TEST(ModelLitmus, AReleaseSequenceEndsWithAnotherStore) {
  const Set all =
      outcomes({[](Words& w, Seen&) {
                  w.x.store(1, relaxed);
                  w.y.store(1, release);
                  w.y.store(2, relaxed);  // also by the same thread, since C++20
                },
                [](Words& w, Seen& r) { r[0] = w.y.load(acquire), r[1] = w.x.load(relaxed); }});
  EXPECT_EQ(all, (Set{"00", "01", "11", "20", "21"}));
}

// Load buffering: not in this model, which lets nobody read what has not been stored yet.
TEST(ModelLitmus, LoadsAreNotBuffered) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { r[0] = w.x.load(relaxed), w.y.store(1, relaxed); },
                      [](Words& w, Seen& r) { r[1] = w.y.load(relaxed), w.x.store(1, relaxed); }}),
            (Set{"00", "01", "10"}));
}

// Independent reads of independent writes.
template <std::memory_order kStore, std::memory_order kLoad>
Set independent_reads() {
  return outcomes({[](Words& w, Seen&) { w.x.store(1, kStore); },
                   [](Words& w, Seen&) { w.y.store(1, kStore); },
                   [](Words& w, Seen& r) { r[0] = w.x.load(kLoad), r[1] = w.y.load(kLoad); },
                   [](Words& w, Seen& r) { r[2] = w.y.load(kLoad), r[3] = w.x.load(kLoad); }});
}

TEST(ModelLitmus, ReadersMayDisagreeOnIndependentStores) {
  const Set all = independent_reads<release, acquire>();
  EXPECT_EQ(all.size(), 16U);
  EXPECT_TRUE(all.contains("1010"));
}

TEST(ModelLitmus, SeqCstReadersAgreeOnIndependentStores) {
  const Set all = independent_reads<seq_cst, seq_cst>();
  EXPECT_EQ(all.size(), 15U);
  EXPECT_FALSE(all.contains("1010"));
}

TEST(ModelLitmus, FencedReadersAgreeOnIndependentStores) {
  const Set all = outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed); },
                            [](Words& w, Seen&) { w.y.store(1, relaxed); },
                            [](Words& w, Seen& r) {
                              r[0] = w.x.load(relaxed);
                              std::atomic_thread_fence(seq_cst);
                              r[1] = w.y.load(relaxed);
                            },
                            [](Words& w, Seen& r) {
                              r[2] = w.y.load(relaxed);
                              std::atomic_thread_fence(seq_cst);
                              r[3] = w.x.load(relaxed);
                            }});
  EXPECT_EQ(all.size(), 15U);
  EXPECT_FALSE(all.contains("1010"));
}

// Two words, two stores each.
TEST(ModelLitmus, StoresOfTwoThreadsMayCrossEachOther) {
  EXPECT_EQ(
      outcomes<Final>({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(2, relaxed); },
                       [](Words& w, Seen&) { w.y.store(1, relaxed), w.x.store(2, relaxed); }}),
      (Set{"11", "12", "21", "22"}));
  EXPECT_EQ(outcomes<Final>({[](Words& w, Seen&) { w.x.store(1), w.y.store(2); },
                             [](Words& w, Seen&) { w.y.store(1), w.x.store(2); }}),
            (Set{"12", "21", "22"}));
  EXPECT_EQ(outcomes<Final>({[](Words& w, Seen&) {
                               w.x.store(1, relaxed);
                               std::atomic_thread_fence(seq_cst);
                               w.y.store(2, relaxed);
                             },
                             [](Words& w, Seen&) {
                               w.y.store(1, relaxed);
                               std::atomic_thread_fence(seq_cst);
                               w.x.store(2, relaxed);
                             }}),
            (Set{"12", "21", "22"}));
}

// Coherence: one word is read in one order by everybody.
TEST(ModelLitmus, AWordNeverGoesBack) {
  EXPECT_EQ(
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.x.store(2, relaxed); },
                [](Words& w, Seen& r) { r[0] = w.x.load(relaxed), r[1] = w.x.load(relaxed); }}),
      (Set{"00", "01", "02", "11", "12", "22"}));
}

TEST(ModelLitmus, ReadersOfOneWordAgree) {
  const Set all =
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed); },
                [](Words& w, Seen&) { w.x.store(2, relaxed); },
                [](Words& w, Seen& r) { r[0] = w.x.load(relaxed), r[1] = w.x.load(relaxed); },
                [](Words& w, Seen& r) { r[2] = w.x.load(relaxed), r[3] = w.x.load(relaxed); }});
  EXPECT_FALSE(all.contains("1221"));
  EXPECT_TRUE(all.contains("1212"));
}

TEST(ModelLitmus, OwnStoresAreRead) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1, relaxed), r[0] = w.x.load(relaxed); },
                      [](Words& w, Seen&) { w.x.store(2, relaxed); }}),
            (Set{"1", "2"}));
}

TEST(ModelLitmus, UpdatesAreNotLost) {
  EXPECT_EQ(outcomes<Final>({[](Words& w, Seen&) { w.x.fetch_add(1, relaxed); },
                             [](Words& w, Seen&) { w.x.fetch_add(1, relaxed); },
                             [](Words& w, Seen&) { w.x.fetch_add(1, relaxed); }}),
            (Set{"30"}));
}

TEST(ModelLitmus, OneOfTwoExchangesSucceeds) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) {
                        int expected = 0;
                        r[0] = w.x.compare_exchange_strong(expected, 1, relaxed) ? 1 : 0;
                      },
                      [](Words& w, Seen& r) {
                        int expected = 0;
                        r[1] = w.x.compare_exchange_strong(expected, 1, relaxed) ? 1 : 0;
                      }}),
            (Set{"01", "10"}));
}

// A third thread that relays without order does not make the order of fences cumulative.
TEST(ModelLitmus, WriteToReadCausalityNeedsOrderInTheMiddle) {
  const Set all = outcomes({[](Words& w, Seen&) {
                              w.x.store(1, relaxed);
                              std::atomic_thread_fence(seq_cst);
                              w.y.store(1, relaxed);
                            },
                            [](Words& w, Seen& r) {
                              r[0] = w.y.load(relaxed);
                              w.z.store(r[0], relaxed);
                            },
                            [](Words& w, Seen& r) {
                              r[1] = w.z.load(relaxed);
                              std::atomic_thread_fence(seq_cst);
                              r[2] = w.x.load(relaxed);
                            }});
  EXPECT_TRUE(all.contains("110"));
  const Set ordered =
      outcomes({[](Words& w, Seen&) { w.x.store(1, relaxed), w.y.store(1, release); },
                [](Words& w, Seen& r) {
                  r[0] = w.y.load(acquire);
                  w.z.store(r[0], release);
                },
                [](Words& w, Seen& r) {
                  r[1] = w.z.load(acquire);
                  r[2] = w.x.load(relaxed);
                }});
  EXPECT_EQ(ordered, (Set{"000", "001", "100", "101", "111"}));
}

// What is not atomic.
TEST(ModelLitmus, PlainDataBehindAFlagIsNoRace) {
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { w.data = 7, w.y.store(1, release); },
                      [](Words& w, Seen& r) { r[0] = w.y.load(acquire) == 0 ? 0 : w.data; }}),
            (Set{"0", "7"}));
}

TEST(ModelLitmus, PlainDataBehindARelaxedFlagIsARace) {
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { w.data = 7, w.y.store(1, relaxed); },
                      [](Words& w, Seen& r) { r[0] = w.y.load(acquire) == 0 ? 0 : w.data; }}),
            (Set{"a data race of threads 1 and 0 at byte 12 of region 0"}));
}

TEST(ModelLitmus, PlainDataThatIsStoredAfterAReleaseIsARace) {
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { w.y.store(1, release), w.data = 7; },
                      [](Words& w, Seen& r) { r[0] = w.y.load(acquire) == 0 ? 0 : w.data; }}),
            (Set{"a data race of threads 1 and 0 at byte 12 of region 0"}));
}

TEST(ModelLitmus, SleepWithoutAWakeUpIsFound) {
  const Set all = outcomes({[](Words& w, Seen&) {
                              while (w.x.load(acquire) == 0)
                                syscall(SYS_futex, &w.x, FUTEX_WAIT, 0, nullptr);
                            },
                            [](Words& w, Seen&) { w.x.store(1, release); }});
  EXPECT_EQ(all, (Set{"nobody goes on: thread 0 sleeps on a futex;"}));
}

TEST(ModelLitmus, AFutexIsComparedAndSleptOnInOneStep) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) {
                        while (w.x.load(acquire) == 0)
                          syscall(SYS_futex, &w.x, FUTEX_WAIT, 0, nullptr);
                        r[0] = 1;
                      },
                      [](Words& w, Seen&) {
                        w.x.store(1, release);
                        syscall(SYS_futex, &w.x, FUTEX_WAKE, 1);
                      }}),
            (Set{"1"}));
}

TEST(ModelLitmus, ASpinnerSeesWhatIsStoredInTheEnd) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) {
                        while (w.x.load(relaxed) == 0) pause();
                        r[0] = 1;
                      },
                      [](Words& w, Seen&) { w.x.store(1, relaxed); }}),
            (Set{"1"}));
  EXPECT_EQ(outcomes({[](Words& w, Seen&) {
                        while (w.x.load(relaxed) == 0) pause();
                      },
                      [](Words& w, Seen&) { w.y.store(1, relaxed); }}),
            (Set{"nobody goes on: thread 0 spins for ever;"}));
}

TEST(ModelLitmus, TwoSpinnersSeeWhatEachOtherStoresInTheEnd) {
  static constexpr auto spin = [](auto& mine, auto& other, int last) {
    for (int i = 1; i <= last; ++i) {
      mine.store(i, relaxed);
      while (other.load(relaxed) < i) pause();
    }
  };
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { spin(w.x, w.y, 2); },
                      [](Words& w, Seen&) { spin(w.y, w.x, 2); }}),
            (Set{""}));
  EXPECT_EQ(outcomes({[](Words& w, Seen&) { spin(w.x, w.y, 2); },
                      [](Words& w, Seen&) { spin(w.y, w.x, 1); }}),
            (Set{"nobody goes on: thread 0 spins for ever;"}));
}

// A fence of all threads by one of them: the others need none.
TEST(ModelLitmus, AHeavyFencePairsWithNone) {
  EXPECT_EQ(outcomes({[](Words& w, Seen& r) { w.x.store(1, relaxed), r[0] = w.y.load(relaxed); },
                      [](Words& w, Seen& r) {
                        w.y.store(1, relaxed);
                        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
                        r[1] = w.x.load(relaxed);
                      }},
                     {.fences_reach_all = true}),
            (Set{"01", "10", "11"}));
}

}  // namespace
}  // namespace farcall::model
