/* SPDX-License-Identifier: Apache-2.0 */
/* The module farcall._farcall: what the package farcall is made of. */
#include "extension.h"

bool add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** type) {
  *type = (PyTypeObject*)PyType_FromModuleAndSpec(module, spec, NULL);
  return *type && PyModule_AddType(module, *type) == 0;
}

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_memory(self);
  Py_DECREF(type);
}

static int fill(PyObject* module) {
  static atomic_bool filled;
  /* What it keeps is kept once per process. */
  if (atomic_exchange(&filled, true)) {
    PyErr_SetString(PyExc_ImportError, "farcall can be used by one interpreter of a process only");
    return -1;
  }
  const bool done = prepare_lives() && add_errors(module) && add_pipe(module) &&
                    add_broadcast(module) && add_queue(module) && add_call(module) &&
                    PyModule_AddFunctions(module, pipe_functions) == 0 &&
                    PyModule_AddFunctions(module, broadcast_functions) == 0 &&
                    PyModule_AddFunctions(module, queue_functions) == 0 &&
                    PyModule_AddFunctions(module, call_functions) == 0 &&
                    PyModule_AddFunctions(module, waiting_functions) == 0 &&
                    PyModule_AddStringConstant(module, "version", farcall_version()) == 0;
  return done ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill},
#ifdef Py_mod_gil
                                   {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                   {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "farcall._farcall",
                                        .m_doc = "Shared-memory messages.", .m_slots = slots};

PyMODINIT_FUNC PyInit__farcall(void) { return PyModuleDef_Init(&definition); }
