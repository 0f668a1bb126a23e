// SPDX-License-Identifier: MPL-2.0

//! Runs the installed binary with pools of this process.

mod clean;
mod doctor;
mod list;
mod manual;
mod plugin;
mod remote;
mod show;
mod support;
mod usage;
mod versions;
mod watch;
