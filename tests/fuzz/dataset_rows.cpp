#include "layerpress/base/error.h"
#include "layerpress/data/token_rows.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace layerpress::fuzz {

void dataset_rows(std::string_view input) {
  for (const char* name : {"rows.jsonl", "rows.json"}) {
    const auto rows = data::open_token_rows(write_input(name, input));
    if (rows == nullptr) continue;
    for (std::int64_t i = 0, count = rows->count(); i < count; ++i) {
      try {
        const auto tokens = rows->row(i);
        require(tokens.has_value(), "a row that is counted, but not there");
        require(rows->loss_mask(i).size() == tokens->size(), "a mask of another length");
      } catch (const DataError&) {  // of this row; others may be read
      }
    }
    require(!rows->row(rows->count()), "a row behind the last one");
  }
}

}  // namespace layerpress::fuzz
