# SPDX-License-Identifier: MPL-2.0
#
#   find_package(xmem 0.1 REQUIRED)
#   target_link_libraries(program PRIVATE xmem::xmem)

# This file is in share/cmake/xmem.
get_filename_component(xmem_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_path(xmem_INCLUDE_DIR xmem.h PATHS "${xmem_prefix}/include" NO_DEFAULT_PATH)
find_library(xmem_LIBRARY xmem PATHS "${xmem_prefix}" PATH_SUFFIXES "lib/${CMAKE_LIBRARY_ARCHITECTURE}" lib64 lib NO_DEFAULT_PATH)
mark_as_advanced(xmem_INCLUDE_DIR xmem_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xmem REQUIRED_VARS xmem_LIBRARY xmem_INCLUDE_DIR VERSION_VAR xmem_VERSION)

if(xmem_FOUND AND NOT TARGET xmem::xmem)
  add_library(xmem::xmem UNKNOWN IMPORTED)
  set_target_properties(xmem::xmem PROPERTIES IMPORTED_LOCATION "${xmem_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${xmem_INCLUDE_DIR}")
endif()
