// SPDX-License-Identifier: MPL-2.0

//! `xmem plugin`: lets GStreamer find the plugin that came with this command in one folder, as the wheel brings both. GStreamer
//! itself finds plugins of the system's packages.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cli::Plugin;

const FILE: &str = "libgstxmem.so";
/// GStreamer uses the first of these that is set.
const PATHS: [&str; 2] = ["GST_PLUGIN_PATH_1_0", "GST_PLUGIN_PATH"];

pub(crate) fn run(action: &Plugin, out: &mut impl Write) -> Result<(), Error> {
    let link = users_folder()?.join(FILE);
    match action {
        Plugin::Path => {
            out.write_all(own_folder()?.as_os_str().as_bytes())?;
            writeln!(out)?;
        }
        Plugin::Install => {
            let file = own_folder()?.join(FILE);
            remove(&link)?;
            let folder = link.parent().unwrap_or(&link);
            fs::create_dir_all(folder)
                .and_then(|()| symlink(&file, &link))
                .map_err(|error| format!("cannot create {}: {error}", link.display()))?;
            writeln!(out, "{} -> {}", link.display(), file.display())?;
        }
        Plugin::Remove => {
            let what = if remove(&link)? {
                "removed"
            } else {
                "there is no"
            };
            writeln!(out, "{what} {}", link.display())?;
        }
    }
    Ok(())
}

/// Adds the plugin of this command, if there is one, to those that a tool of GStreamer finds.
pub(crate) fn offer(tool: &mut Command) {
    let Ok(folder) = own_folder() else { return };
    let set = set_path();
    let (name, before) = set.unwrap_or((PATHS[0], OsString::new()));
    let folders = env::split_paths(&before).chain([folder]);
    let folders = folders.filter(|it| !it.as_os_str().is_empty());
    if let Ok(folders) = env::join_paths(folders) {
        tool.env(name, folders);
    }
}

/// The variable that GStreamer uses, and its value.
fn set_path() -> Option<(&'static str, OsString)> {
    PATHS
        .iter()
        .find_map(|name| Some((*name, env::var_os(name)?)))
}

/// The variable to which users add a folder of plugins.
pub(crate) fn search_path() -> &'static str {
    set_path().map_or("GST_PLUGIN_PATH", |(name, _)| name)
}

/// The folder of the plugin that came with this command.
fn own_folder() -> Result<PathBuf, Error> {
    let program = env::current_exe()?;
    let prefix = program.ancestors().nth(2).unwrap_or(&program);
    let folder = prefix.join("lib/gstreamer-1.0");
    if folder.join(FILE).exists() {
        return Ok(folder);
    }
    Err(format!(
        "there is no {FILE} in {}: this command was installed without a plugin. `gst-inspect-1.0 xmem` prints whether GStreamer \
         finds another one",
        folder.display()
    )
    .into())
}

/// The folder in which GStreamer looks for the plugins of this user.
fn users_folder() -> Result<PathBuf, Error> {
    let data = env::var_os("XDG_DATA_HOME").filter(|it| Path::new(it).is_absolute());
    let data = data.map(PathBuf::from);
    let data = data.or_else(|| Some(env::home_dir()?.join(".local/share")));
    let data = data.ok_or("there is no home directory: set HOME or XDG_DATA_HOME")?;
    Ok(data.join("gstreamer-1.0/plugins"))
}

/// Removes a link that `install` made, also if its plugin is gone. `false`: there is none.
fn remove(link: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(link) {
        Ok(there) if there.is_symlink() => fs::remove_file(link)?,
        Ok(_) => {
            return Err(format!(
                "{} was not created by `xmem plugin install`: remove it first",
                link.display()
            )
            .into());
        }
        Err(_) => return Ok(false),
    }
    Ok(true)
}
