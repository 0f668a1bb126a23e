// SPDX-License-Identifier: MPL-2.0

//! Collects the possible steps of a state.

use super::checker::Step;
use super::world::World;

pub(crate) struct Steps<'a> {
    from: &'a World,
    out: &'a mut Vec<(Step, World)>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(from: &'a World, out: &'a mut Vec<(Step, World)>) -> Self {
        Self { from, out }
    }

    pub(crate) fn add(
        &mut self,
        who: &'static str,
        what: &'static str,
        change: impl FnOnce(&mut World),
    ) {
        let mut world = *self.from;
        change(&mut world);
        self.out.push(((who, what), world.canonical()));
    }
}
