// SPDX-License-Identifier: MPL-2.0

//! Runs the transports in turn, several times over, so that what else the machine does hits all alike.

use std::time::Duration;

use clap::ValueEnum;

use crate::figures::Figures;
use crate::group::{self, Case, Counts, Group};
use crate::scenario::Scenario;
use crate::{Error, report, stopped};

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How often each transport is measured
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// What is measured [default: everything in turn]
    #[arg(long = "scenario", value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
}

/// Everything that was measured in one scenario.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) floor: Vec<Figures>,
    pub(crate) alone: Vec<Figures>,
    pub(crate) cases: Vec<Measured>,
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) case: Case,
    pub(crate) rounds: Vec<Group>,
    pub(crate) counts: Counts,
}

pub(crate) fn run(plan: &Plan, fps: u32) -> Result<(), Error> {
    gst::init()?;
    println!("{}", report::heading(plan.rounds, plan.seconds, fps));
    let all = if plan.scenarios.is_empty() {
        Scenario::value_variants()
    } else {
        &plan.scenarios
    };
    for scenario in all {
        println!("### {}\n", scenario.title());
        let left_out = scenario.left_out();
        left_out.iter().for_each(|line| println!("{line}.\n"));
        let section = match scenario {
            Scenario::Stopped => stopped::section(fps)?,
            _ => report::section(*scenario, &measure(plan, *scenario, scenario.fps(fps))?)?,
        };
        println!("{section}");
    }
    Ok(())
}

fn measure(plan: &Plan, scenario: Scenario, fps: u32) -> Result<Results, Error> {
    let time = Duration::from_secs(plan.seconds.into());
    let cases = scenario.cases().into_iter().map(|case| Measured {
        case,
        rounds: Vec::new(),
        counts: Counts::default(),
    });
    let mut results = Results {
        floor: Vec::new(),
        alone: Vec::new(),
        cases: cases.collect(),
    };
    let title = scenario.title();
    for round in 0..plan.rounds {
        eprintln!("{title}: round {} of {}", round + 1, plan.rounds);
        results.floor.push(group::measure_floor(fps)?);
        if scenario.has_alone() {
            let alone = group::measure_alone(scenario.frames(), time, fps)?;
            results.alone.push(alone);
        }
        let mut order: Vec<&mut Measured> = results.cases.iter_mut().collect();
        let first = round as usize % order.len();
        order.rotate_left(first);
        for measured in order {
            measured
                .rounds
                .push(group::measure(measured.case, time, fps)?);
        }
    }
    eprintln!("{title}: system calls and page faults");
    for measured in &mut results.cases {
        measured.counts = group::count(measured.case, fps)?;
    }
    Ok(results)
}
