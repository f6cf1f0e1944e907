// SPDX-License-Identifier: Apache-2.0
#include "doctor/reasons.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "doctor/fake_tree.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Severity;

TEST(DoctorReasons, EachHaveASentenceForTheCauseAndForTheCure) {
  Findings findings;
  for (const char* const id : {"not-local",
                               "excluded",
                               "too-short",
                               "peer-silent",
                               "peer-without-library",
                               "other-user",
                               "no-proof",
                               "too-many",
                               "no-memory",
                               "held-by-several",
                               "seen-too-late",
                               "option",
                               "urgent",
                               "passed",
                               "broken",
                               "library-not-loaded",
                               "switched-off",
                               "peer-stopped",
                               "io-uring",
                               "network-namespaces",
                               "unix-datagrams",
                               "peer-gave-back",
                               "peer-unseen",
                               "undecided",
                               "unseen"}) {
    const doctor::Reason& reason = doctor::reason(id);
    findings.push_back({reason.id, reason.severity, "x", reason.cause, reason.cure});
  }
  expect_sentences(findings);
}

TEST(DoctorReasons, ThatDoNotExistAreAnErrorOfTheCaller) {
  EXPECT_THROW((void)doctor::reason("of-course"), std::logic_error);
}

TEST(DoctorFindings, AreWrongUnlessTheyAreNotes) {
  Findings findings;
  EXPECT_FALSE(doctor::anything_wrong(findings));
  findings.push_back({"a", Severity::note, "x", "y", "z"});
  EXPECT_FALSE(doctor::anything_wrong(findings));
  findings.push_back({"b", Severity::warning, "x", "y", "z"});
  EXPECT_TRUE(doctor::anything_wrong(findings));
}

TEST(DoctorFindings, HaveTheWorstFirstAndStayInOrderOtherwise) {
  Findings findings{{"a", Severity::note, "", "", ""},
                    {"b", Severity::fault, "", "", ""},
                    {"c", Severity::warning, "", "", ""},
                    {"d", Severity::fault, "", "", ""}};
  doctor::sort_by_severity(findings);
  EXPECT_EQ(ids(findings), "b d c a ");
}

TEST(DoctorFindings, ThatSayTheSameOfSeveralBecomeOne) {
  Findings findings;
  for (const char* const about : {"a", "b", "c", "d", "e", "f"})
    findings.push_back({"x", Severity::note, about, "cause", "cure"});
  findings.insert(findings.begin() + 1, {"x", Severity::note, "g", "another cause", "cure"});
  doctor::join_alike(findings);
  ASSERT_EQ(ids(findings), "x x ");
  EXPECT_EQ(findings[0].about, "a; b; c; d; and 2 more");
  EXPECT_EQ(findings[1].about, "g");
}

}  // namespace
}  // namespace farcall::test
