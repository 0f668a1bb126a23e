// SPDX-License-Identifier: MPL-2.0

// Reads the frames of a pool from an appsink. Built with `pkg-config --cflags --libs gstreamer-app-1.0 gstreamer-video-1.0`.

#include <gst/app/gstappsink.h>
#include <gst/video/video.h>
#include <cstdio>

int main(int argc, char **argv) {
    gst_init(&argc, &argv);
    GstElement *pipeline = gst_parse_launch("xmemsrc pool=cam0 ! appsink name=sink sync=false max-buffers=1", nullptr);
    GstElement *sink = gst_bin_get_by_name(GST_BIN(pipeline), "sink");
    gst_element_set_state(pipeline, GST_STATE_PLAYING);
    // Null at the end of the stream, or after an error, which is on the bus.
    while (GstSample *sample = gst_app_sink_pull_sample(GST_APP_SINK(sink))) {
        GstVideoInfo info;
        GstVideoFrame frame;
        if (gst_video_info_from_caps(&info, gst_sample_get_caps(sample)) &&
            gst_video_frame_map(&frame, &info, gst_sample_get_buffer(sample), GST_MAP_READ)) {
            auto pixels = static_cast<const guint8 *>(GST_VIDEO_FRAME_PLANE_DATA(&frame, 0));
            std::printf("%dx%d, first byte %d\n", info.width, info.height, pixels[0]);
            gst_video_frame_unmap(&frame);
        }
        gst_sample_unref(sample);  // releases the frame
    }
}
