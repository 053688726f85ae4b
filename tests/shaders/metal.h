// As much of Metal's library as functions of one f32 call, for a C++ compiler.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

using uint = unsigned;
template <class T, class S> T as_type(S from) {
    T to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}

namespace metal {
using ::uint;
template <class T> struct Two { T x, y; };
struct uint2 : Two<uint> { uint2(uint a, uint b) : Two<uint>{a, b} {} };
struct float3 { float x, y, z; float3(float a, float b, float c) : x(a), y(b), z(c) {} };
inline float rint(float x) { return __builtin_rintf(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline float trunc(float x) { return __builtin_truncf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline bool any(bool x) { return x; }
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T clamp(T x, T low, T high) { return min(max(x, low), high); }
} // namespace metal

// Subnormals as zero, on x86, and input and output as they are.
inline void prepare(bool flushes) {
#if defined(__SSE2__)
    if (flushes) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
#if defined(_WIN32)
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    (void)flushes;
}
