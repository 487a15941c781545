#include "shipped_text.h"

// A compiler takes seconds for a million characters, the assembler none.
asm(".pushsection .rodata\n"
    "muster_shipped_text:\n"
    ".incbin \"" MUSTER_SHIPPED_TEXT
    "\"\n"
    "muster_shipped_text_end:\n"
    ".popsection\n");

extern "C" {
extern const char muster_shipped_text[];
extern const char muster_shipped_text_end[];
}

namespace muster::cli {

std::string_view shipped_text() { return {muster_shipped_text, muster_shipped_text_end}; }

}  // namespace muster::cli
