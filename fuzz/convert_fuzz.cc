// SPDX-License-Identifier: Apache-2.0
// Any bytes as what inspect, verify and convert read beside checkpoint files: DCP's metadata, an index of shards, and an
// object to be pickled again, which must then read as well-formed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include <headrace/pickle.h>

#include "convert/pickle_rewrite.h"
#include "format/dcp_metadata.h"
#include "format/shard_index.h"

using namespace headrace;

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void read_dcp(std::span<const std::byte> input) {
  const Result<format::DcpMetadata> metadata = format::parse_dcp_metadata(input);
  if (!metadata) return expect(!metadata.error().detail.empty() || metadata.error().errno_value != 0);
  for (const format::DcpTensor& tensor : metadata->tensors)
    (void)format::check_dcp_pieces(tensor);
}

void read_index(std::span<const std::byte> input) {
  const Result<format::ShardIndexText> index = format::parse_shard_index(input);
  if (!index) return expect(!index.error().detail.empty());
  expect(std::ranges::is_sorted(index->files_by_tensor));
  const std::string text = format::write_shard_index(*index);
  const Result<format::ShardIndexText> again = format::parse_shard_index(std::as_bytes(std::span(text)));
  expect(again.has_value() && again->files_by_tensor.size() == index->files_by_tensor.size());
}

void rewrite(std::span<const std::byte> input) {
  const PickleOptions collect = {.unknown_globals = UnknownGlobals::collect};
  const Result<Pickle> pickle = parse_pickle(input, collect);
  if (!pickle) return;
  for (const convert::StorageIds ids : {convert::StorageIds::zip, convert::StorageIds::legacy}) {
    const Result<std::string> text =
        convert::rewrite_pickle(*pickle, ids, [](const PickleStorage& storage) { return std::string(storage.key); });
    if (!text) {
      expect(!text.error().detail.empty());
      continue;
    }
    const Result<Pickle> again = parse_pickle(std::as_bytes(std::span(*text)), collect);
    // Some rules are about the order in which things are done, which is another one in a tree.
    // An empty set has no opcode in protocol 2: it is a call then.
    const PickleKind kind = pickle->kind(pickle->root());
    if (again) expect(again->kind(again->root()) == (kind == PickleKind::set ? PickleKind::call : kind));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 3) {
    case 0: read_dcp(input); break;
    case 1: read_index(input); break;
    default: rewrite(input); break;
  }
  return 0;
}
