// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compare/report.hpp"
#include "compare/table_text.hpp"
#include "compare/units.hpp"

namespace farcall::compare {
namespace {

class DeadPeerTable : TableText {
 public:
  using TableText::TableText;

  std::string text() {
    for (const Placement placement : comparison_.settings.placements)
      for (const std::size_t size : comparison_.settings.sizes) block(placement, size);
    return std::move(text_) + lines_of_missing(comparison_);
  }

 private:
  // Who is told first, then who waits; rows without a size are in each block.
  void block(Placement placement, std::size_t size) {
    const auto rows = chosen(
        [&](const Result& one) {
          return one.placement == placement &&
                 (one.message_bytes == size || one.row->info().fixed_bytes != 0);
        },
        [](const Result& one) {
          return one.loss.fate == Board::Loss::told ? median(one.loss.ns) : 1e18;
        });
    if (rows.empty()) return;
    line(kBold, fmt::format("{}, {}", to_string(placement), format_size(size)));
    line(kDim,
         fmt::format("  {:<26} {:<8} {:>7}   {}", "", "wait", "idle", "the server is killed"));
    for (const Result* result : rows) row(*result);
    text_ += '\n';
  }

  void row(const Result& result) {
    const RowInfo& info = result.row->info();
    if (!result.error.empty())
      return line(
          kRed, fmt::format("  {:<26} {:<8} failed: {}", info.mechanism, info.wait, result.error));
    line(info.engine == "shared" ? kGreen : "",
         fmt::format("  {:<26} {:<8} {:>7}   {}", info.mechanism, info.wait,
                     fmt::format("{:.1f} %",
                                 100 * (median(result.loss.cpu[0]) + median(result.loss.cpu[1]))),
                     fate(result.loss)));
  }

  static std::string fate(const Result::Loss& loss) {
    if (loss.fate == Board::Loss::waits)
      return fmt::format("waits for more than {} s", kLongestWait / 1'000'000'000);
    const std::string time = format_ns(median(loss.ns));
    return loss.fate == Board::Loss::told ? fmt::format("told after {}: {}", time, loss.text)
                                          : fmt::format("told of nothing, back after {}", time);
  }
};

}  // namespace

std::string dead_peer_table(const Comparison& comparison, bool colours) {
  return DeadPeerTable(comparison, colours).text() +
         "idle: processor time of both sides while nobody calls, 100 % is one processor. Then the "
         "server is\nkilled while the client waits for its answer: how long it takes until the "
         "client has an error.\n";
}

}  // namespace farcall::compare
