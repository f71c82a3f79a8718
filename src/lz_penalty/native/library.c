/* The header as a shared library: its functions, exported. */
#define LZ_PENALTY_API
#include "lz_penalty.h"
