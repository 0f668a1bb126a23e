// SPDX-License-Identifier: MPL-2.0

//! Visits all reachable states, breadth first, so that a counterexample is as short as possible.
//!
//! The checker stores whole states, not hashes, so that it never confuses two states.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::time::Instant;

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// The actor of a step, and its action.
pub(crate) type Step = (&'static str, &'static str);

/// The model to explore.
pub(crate) trait Model {
    type State: Clone + Eq + Hash + Debug;

    fn start(&self) -> Self::State;

    /// All possible steps of a state, with the resulting states. States that are equivalent must be returned as the same state.
    fn steps(&self, state: &Self::State, out: &mut Vec<(Step, Self::State)>);

    /// The violated property of a state. `None` if there is none.
    fn flaw(&self, state: &Self::State) -> Option<&'static str>;

    /// Facts that must occur. They show that the model really takes its steps.
    fn marks(&self, state: &Self::State, mark: &mut dyn FnMut(&'static str));
}

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The number of states with each mark.
    pub(crate) marks: BTreeMap<&'static str, usize>,
    /// The violated property, and the steps that lead to it.
    pub(crate) flaw: Option<(&'static str, String)>,
}

/// Explores a model until there are no new states, or a property is violated.
pub(crate) fn explore<M: Model>(name: &str, model: &M) -> Outcome {
    let start = Instant::now();
    // In the order of discovery, which is also the order of visits.
    let mut states = IndexSet::with_hasher(FxBuildHasher);
    let mut parents: Vec<u32> = vec![0];
    let mut marks = BTreeMap::new();
    let mut transitions = 0usize;
    states.insert(model.start());
    let mut next = Vec::new();
    let mut at = 0;
    let mut flaw = None;
    while let Some(state) = states.get_index(at).cloned() {
        if let Some(what) = model.flaw(&state) {
            flaw = Some((what, trace(model, &states, &parents, at)));
            break;
        }
        model.marks(&state, &mut |mark| *marks.entry(mark).or_default() += 1);
        next.clear();
        model.steps(&state, &mut next);
        transitions += next.len();
        for (_, successor) in next.drain(..) {
            if states.insert(successor) {
                parents.push(at as u32);
            }
        }
        at += 1;
    }
    println!(
        "{name}: {} states, {transitions} steps, {:.1} s, {}",
        states.len(),
        start.elapsed().as_secs_f32(),
        flaw.as_ref().map_or("all explored", |(what, _)| *what)
    );
    Outcome { marks, flaw }
}

/// The steps from the start to a state, and the state.
fn trace<M: Model>(
    model: &M,
    states: &IndexSet<M::State, FxBuildHasher>,
    parents: &[u32],
    mut at: usize,
) -> String {
    let last = &states[at];
    let mut lines = Vec::new();
    while at != 0 {
        let parent = parents[at] as usize;
        let mut next = Vec::new();
        model.steps(&states[parent], &mut next);
        let step = next.iter().find(|(_, state)| *state == states[at]);
        lines.extend(step.map(|((who, what), _)| format!("  {who:<18} {what}")));
        at = parent;
    }
    lines.reverse();
    let mut text = lines.join("\n");
    let _ = write!(text, "\n{last:#?}");
    text
}
