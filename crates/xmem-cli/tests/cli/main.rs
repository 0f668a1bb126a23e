// SPDX-License-Identifier: MPL-2.0

//! The real binary against a real pool that this process makes.

mod clean;
mod doctor;
mod list;
mod manual;
mod remote;
mod show;
mod support;
mod usage;
mod watch;
