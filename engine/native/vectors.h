/* Vectors of float32 as all kernels use them.
 *
 * GNU C (GCC, Clang): vector extensions, so that one source serves all processors. A file may set
 * LANES before it includes this. */

#ifndef FLOWFORGE_VECTORS_H
#define FLOWFORGE_VECTORS_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX__) || defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef LANES
#define LANES 8
#endif
#define INLINE static inline __attribute__((always_inline, unused))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

INLINE vec load(const float *at) {
  vec values;
  memcpy(&values, at, sizeof values);
  return values;
}

INLINE void store(float *at, vec values) { memcpy(at, &values, sizeof values); }

INLINE vec all(float value) {
#if LANES == 16
  return (vec){value, value, value, value, value, value, value, value,
               value, value, value, value, value, value, value, value};
#else
  return (vec){value, value, value, value, value, value, value, value};
#endif
}

/* Said outright: a compiler that may choose would not choose alike for every shape of a tile. */
INLINE vec multiply_add(vec left, vec right, vec sum) {
#if defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)sum);
#elif defined(__FMA__) && LANES == 8
  return (vec)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)sum);
#else
  return left * right + sum;
#endif
}

INLINE vec chosen(ivec is_first, vec first, vec second) {
  return (vec)(((ivec)first & is_first) | ((ivec)second & ~is_first));
}

/* The second where either is NaN. */
INLINE vec larger(vec first, vec second) {
#if defined(__AVX__) && LANES == 8
  return (vec)_mm256_max_ps((__m256)first, (__m256)second);
#else
  return chosen(first > second, first, second);
#endif
}

INLINE vec smaller(vec first, vec second) {
#if defined(__AVX__) && LANES == 8
  return (vec)_mm256_min_ps((__m256)first, (__m256)second);
#else
  return chosen(first < second, first, second);
#endif
}

/* In a register: else compilers load it anew for each of its uses, which costs more. */
INLINE vec held(vec values) {
#if defined(__AVX__) && LANES == 8
  __asm__("" : "+x"(values));
#endif
  return values;
}

/* e^x within 2e-7 of it, 0 below -87, for x up to 88; NaN stays NaN. After Cephes' expf (Moshier). */
INLINE vec exponential(vec x) {
  ivec is_low = x < all(-87.0f);
  vec bounded = larger(all(-87.0f), x);
  vec turns = bounded * all(1.44269504088896341f);
  vec rounded = (turns + all(12582912.0f)) - all(12582912.0f); /* to the nearest integer */
  vec rest = multiply_add(rounded, all(-0.693359375f), bounded);
  rest = multiply_add(rounded, all(2.12194440e-4f), rest);
  vec sum = all(1.9875691500e-4f);
  sum = multiply_add(sum, rest, all(1.3981999507e-3f));
  sum = multiply_add(sum, rest, all(8.3334519073e-3f));
  sum = multiply_add(sum, rest, all(4.1665795894e-2f));
  sum = multiply_add(sum, rest, all(1.6666665459e-1f));
  sum = multiply_add(sum, rest, all(5.0000001201e-1f));
  sum = multiply_add(sum, rest * rest, rest + all(1.0f));
  ivec power = (__builtin_convertvector(rounded, ivec) + 127) << 23;
  vec result = sum * (vec)power;
  return (vec)((ivec)result & ~is_low);
}

#define LOG2_E 1.44269504088896341f

/* 2^x within 2e-7 of it, 0 below -126, for x up to 127; NaN stays NaN. The polynomial is 1 at 0 and
 * has the least largest error otherwise. */
INLINE vec power_of_two(vec x) {
  ivec is_low = x < all(-126.0f);
  vec bounded = larger(all(-126.0f), x);
  vec shifted = bounded + all(12582912.0f); /* the nearest integer is in its last bits */
  vec rest = bounded - (shifted - all(12582912.0f));
  vec sum = all(1.3269407209e-3f);
  sum = multiply_add(sum, rest, all(9.6712941304e-3f));
  sum = multiply_add(sum, rest, all(5.5507112294e-2f));
  sum = multiply_add(sum, rest, all(2.4022246897e-1f));
  sum = multiply_add(sum, rest, all(6.9314700365e-1f));
  sum = multiply_add(sum, rest, all(1.0f));
  vec result = sum * (vec)(((ivec)shifted + 127) << 23);
  return (vec)((ivec)result & ~is_low);
}

#endif
