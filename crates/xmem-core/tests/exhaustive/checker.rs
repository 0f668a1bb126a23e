// SPDX-License-Identifier: MPL-2.0

//! Visits every state that can be reached, breadth first, so that a counterexample is a shortest one.
//!
//! Whole states are kept, not hashes of them: two states are never taken for one.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::time::Instant;

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// The actor of a step, and what it does.
pub(crate) type Step = (&'static str, &'static str);

/// The model to explore.
pub(crate) trait Model {
    type State: Clone + Eq + Hash + Debug;

    fn start(&self) -> Self::State;

    /// All steps that are possible in a state, with the states that they lead to. States that differ in nothing that
    /// matters are given as the same one.
    fn steps(&self, state: &Self::State, out: &mut Vec<(Step, Self::State)>);

    /// The flaw of a state, if there is one.
    fn flaw(&self, state: &Self::State) -> Option<&'static str>;

    /// Facts that have to occur: a proof that nothing goes wrong also has to show that steps happen.
    fn marks(&self, state: &Self::State, mark: &mut dyn FnMut(&'static str));
}

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// How many states have each mark.
    pub(crate) marks: BTreeMap<&'static str, usize>,
    /// The flaw, and the steps that lead there.
    pub(crate) flaw: Option<(&'static str, String)>,
}

/// Explores a model until there is nothing new, or a flaw is found.
pub(crate) fn explore<M: Model>(name: &str, model: &M) -> Outcome {
    let start = Instant::now();
    // In the order in which they are found, which is the order in which they are visited.
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
