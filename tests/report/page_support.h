// The data of a page, as its script reads them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "report/page.h"

namespace muster::report {

inline std::string data_text(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  return html.substr(begin, html.find("</script>", begin) - begin);
}

inline nlohmann::json page_data(const Page& page) { return nlohmann::json::parse(data_text(page_html(page))); }

}  // namespace muster::report
