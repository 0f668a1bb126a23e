/* SPDX-License-Identifier: MPL-2.0 */

/* Ends `main` with the error of a call. */

#define CHECK(call)                                                                                                                  \
    do {                                                                                                                             \
        xmem_result result_ = (call);                                                                                                \
        if (result_ != XMEM_OK)                                                                                                      \
            return printf("%s: %d %s\n", #call, result_, xmem_error()), 1;                                                           \
    } while (0)
