/* What the files of the extension share: Python's limited API, the errors, the tables of functions. */

#ifndef FLUIDLITE_KERNELS_H
#define FLUIDLITE_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <stdint.h>

#if FLT_EVAL_METHOD != 0
#error "floats are computed in a wider type here: results would not be those of numpy"
#endif

/* fluidlite.errors.DtypeError, ShapeError and OutOfRangeError; set when the module is imported */
extern PyObject *fl_dtype_error, *fl_shape_error, *fl_range_error;

extern PyMethodDef fl_index_methods[];
extern PyMethodDef fl_ids_methods[];
extern PyMethodDef fl_rows_methods[];
extern PyMethodDef fl_updates_methods[];
extern PyMethodDef fl_dense_methods[];
extern PyMethodDef fl_parse_methods[];

/* An entry of a table of functions: (self, arguments, their number) */
#define FL_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))

/* A hot loop compiled for several instruction sets; the loader takes the best that the processor has. Results are those of
 * the plain loop: nothing is reassociated and nothing contracted. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && !defined(FL_SANITIZED)
#define FL_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FL_CLONES
#endif

#if defined(__GNUC__)
#define FL_PREFETCH(address) __builtin_prefetch(address, 0, 2)
#define FL_PREFETCH_WRITE(address) __builtin_prefetch(address, 1, 2)
#define FL_INLINE static inline __attribute__((always_inline))
#else
#define FL_PREFETCH(address) ((void)0)
#define FL_PREFETCH_WRITE(address) ((void)0)
#define FL_INLINE static inline
#endif

#endif
