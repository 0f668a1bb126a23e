/* SPDX-License-Identifier: MPL-2.0 */
/* A program with the plugin linked statically. */

#include <gst/gst.h>

GST_PLUGIN_STATIC_DECLARE(xmem);

int main(int argc, char **argv)
{
  const char *names[] = { "xmemsink", "xmemsrc" };

  gst_init(&argc, &argv);
  GST_PLUGIN_STATIC_REGISTER(xmem);
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
    GstElement *element = gst_element_factory_make(names[i], NULL);

    if (element == NULL) {
      g_printerr("no %s in this program\n", names[i]);
      return 1;
    }
    gst_object_unref(element);
  }
  return 0;
}
