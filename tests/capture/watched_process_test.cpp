// SPDX-License-Identifier: Apache-2.0
#include "capture/watched_process.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/tap.hpp"

namespace farcall::capture {
namespace {

// By a process that looks at itself.
class Watched : public ::testing::Test {
 protected:
  void look() {
    watch::Process found;
    ASSERT_EQ(watch::look(::getpid(), found), watch::Seen::yes);
    tables_ = found.tables.size();
    if (!process_) process_.emplace(found, false, false);
    process_->renew(found, Filter(""));
  }
  // What has come.
  std::string read() {
    std::string all;
    std::vector<std::unique_ptr<Batch>> batches;
    EXPECT_TRUE(process_->read(batches));
    for (const auto& batch : batches)
      for (const Message& message : batch->messages)
        all.append(reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size());
    return all;
  }
  static void send(const observe::Entry& entry, std::string_view text) {
    observe::note_sent(entry.sent(), text.data(), text.size());
  }

  std::size_t tables_ = 0;
  std::optional<WatchedProcess> process_;
};

// The rings are in the first of its tables, which its addresses do not show.
TEST_F(Watched, IsReadHoweverManyEndsItHas) {
  constexpr std::size_t kMany = 2'600;
  const observe::Description ring{.kind = observe::Kind::ring, .role = observe::Role::writer};
  std::vector<observe::Entry> entries;
  for (std::size_t i = 0; i < kMany; ++i) entries.emplace_back(ring);
  look();
  EXPECT_GT(tables_, 10U);
  send(entries.back(), "last");
  send(entries.front(), "first");
  EXPECT_EQ(read(), "lastfirst");
  look();
  send(entries[kMany / 2], "middle");
  EXPECT_EQ(read(), "middle");
  EXPECT_EQ(process_->lost(), 0U);
}

}  // namespace
}  // namespace farcall::capture
