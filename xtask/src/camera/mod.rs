// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask camera`: cameras of the kernel's own driver, in a small virtual machine. They are shared, plugged in and
//! unplugged. Cameras of v4l2loopback, to which `xmem camera` writes. And DMA buffers, which that kernel can make.

use std::path::Path;
use std::process::Command;

use crate::check::cargo::strict;
use crate::compat::Debian;
use crate::packages::{self, Purpose};
use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, built_dir, cargo, root, target_dir};

/// Unpacks Debian's kernel with its modules, of the version for which dkms has built v4l2loopback. The kernel is not installed,
/// which would make an initramfs.
const KERNEL: &str = r#"set -e
version=$(dkms status v4l2loopback | sed -n 's/^[^,]*, \([^,]*\), .*installed.*/\1/p' | sort -V | tail -n 1)
if [ -e "/boot/vmlinuz-$version" ]; then exit; fi
mkdir -p /var/tmp/kernel
cd /var/tmp/kernel
apt-get -o APT::Sandbox::User=root download "linux-image-$version"
dpkg-deb -x linux-image-*.deb .
for modules in lib/modules usr/lib/modules; do
    if [ -d $modules ]; then cp -a $modules /usr/lib/; fi
done
depmod "$version"
rm -f /boot/vmlinuz-*
mv "boot/vmlinuz-$version" /boot/
rm -rf /var/tmp/kernel"#;

const LIBXMEM: &str = "libxmem.so";

/// The line of README.md that shares a camera.
fn of_readme() -> Result<String> {
    let text = std::fs::read_to_string(root().join("README.md"))?;
    let line = text.lines().find(|line| line.contains(" v4l2src "));
    let line = line.ok_or("README.md shares no camera")?;
    let pipeline = line.trim_start_matches("gst-launch-1.0 ");
    let pipeline = pipeline.split('#').next().unwrap_or_default();
    // Words, without the quotes of the shell.
    let pipeline = pipeline.replace('\'', "");
    Ok(pipeline.replace("pool=cam0", "pool=cam").trim().to_owned())
}

pub(crate) fn run() -> Result {
    let debian = match machine() {
        Ok(debian) => debian,
        Err(reason) => {
            println!("The cameras were not run: {reason}");
            return Ok(());
        }
    };
    let mut build = cargo();
    let words = "build --locked --package gstxmem-cdylib --package xmem-cli --package xmem-capi";
    build.args(words.split(' '));
    let share = target_dir().join("camera");
    std::fs::create_dir_all(&share)?;
    let debug = built_dir();
    let mut program = Command::new("cc");
    program
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(root().join("crates/xmem-capi/include"))
        .arg(root().join("xtask/src/camera/dmabuf.c"))
        .arg("-o")
        .arg(share.join("dmabuf"))
        .arg(debug.join(LIBXMEM));
    step::run_all(vec![
        Step::new("build", strict(build), SEE_ABOVE),
        Step::new("build, C", program, SEE_ABOVE),
    ])?;
    let own = root().join("xtask/src/camera");
    for file in [
        "webcam.py",
        "cases.sh",
        "dmabuf.py",
        "dmabuf.sh",
        "loopback.sh",
    ] {
        std::fs::copy(own.join(file), share.join(file))?;
    }
    for file in ["libgstxmem.so", "xmem"] {
        std::fs::copy(debug.join(file), share.join(file))?;
    }
    // By the name that the program looks for.
    std::fs::copy(debug.join(LIBXMEM), share.join(format!("{LIBXMEM}.0")))?;
    std::fs::write(share.join("readme"), of_readme()?)?;
    let mut cases = Command::new("sh");
    cases
        .arg(own.join("boot.sh"))
        .arg(debian.path(Path::new("/")));
    cases.arg(&share).arg("sh /mnt/cases.sh");
    step::run_all(vec![Step {
        name: "cameras",
        command: cases,
        advice: "each line above that begins with FAILED is a case of a script in xtask/src/camera, followed by the ends of its logs",
    }])
}

/// A Debian with a kernel, and the programs that boot it. `Err`: why there is none.
fn machine() -> Result<Debian> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("the virtual machine is for x86-64 only".into());
    }
    packages::ensure(&[packages::COMPAT_NEEDS, packages::CAMERA_NEEDS])?;
    let debian = Debian::ensure(Purpose::Camera)?;
    debian.make(&["sh", "-c", KERNEL])?;
    Ok(debian)
}
