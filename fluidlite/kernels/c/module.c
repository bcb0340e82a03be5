/* fluidlite.kernels._c: the inner loops of tables and dense kernels. Each file brings its own functions. */

#include "kernels.h"

PyObject *fl_dtype_error, *fl_shape_error, *fl_range_error;

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fluidlite.kernels._c",
    .m_doc = "Inner loops in C; fluidlite.kernels chooses between them and numpy.",
    .m_size = -1,
};

static int find_errors(void)
{
    PyObject *errors = PyImport_ImportModule("fluidlite.errors");
    if (!errors)
        return -1;
    fl_dtype_error = PyObject_GetAttrString(errors, "DtypeError");
    fl_shape_error = PyObject_GetAttrString(errors, "ShapeError");
    fl_range_error = PyObject_GetAttrString(errors, "OutOfRangeError");
    Py_DECREF(errors);
    return fl_dtype_error && fl_shape_error && fl_range_error ? 0 : -1;
}

PyMODINIT_FUNC PyInit__c(void)
{
    PyMethodDef *const methods[] = {
        fl_index_methods, fl_ids_methods, fl_rows_methods, fl_updates_methods, fl_dense_methods, fl_parse_methods,
    };
    PyObject *module = find_errors() < 0 ? NULL : PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", FL_INTERFACE) < 0)
        Py_CLEAR(module);
    for (size_t i = 0; module && i < sizeof methods / sizeof *methods; i++)
        if (PyModule_AddFunctions(module, methods[i]) < 0)
            Py_CLEAR(module);
    return module;
}
