# SPDX-License-Identifier: MPL-2.0

"""A node of ROS 2 that publishes a camera, or another source of xmem.Camera, as sensor_msgs/Image.

python3 ros2_camera.py /dev/video0 --ros-args -r image_raw:=/cam0/image_raw
"""

import contextlib
import sys

import numpy as np
import rclpy
from sensor_msgs.msg import Image

import xmem


def main() -> None:
    rclpy.init(args=sys.argv)
    source = rclpy.utilities.remove_ros_args(sys.argv)[1]
    node = rclpy.create_node("xmem_camera")
    publisher = node.create_publisher(Image, "image_raw", 10)
    with xmem.Camera(source, newest_only=True) as camera:
        for frame in camera:
            if not rclpy.ok():
                break
            height, width, _ = frame.shape
            # ROS 2 copies the bytes into its message.
            image = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=np.asarray(frame).tobytes())
            image.header.stamp = node.get_clock().now().to_msg()
            publisher.publish(image)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
