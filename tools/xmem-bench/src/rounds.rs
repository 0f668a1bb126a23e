// SPDX-License-Identifier: MPL-2.0

//! Measures the transports in turn, in several rounds, so that other load on the machine affects all of them alike.

use std::time::Duration;

use clap::ValueEnum;

use crate::group::{self, Counts, Measured, Results};
use crate::scenario::Scenario;
use crate::{Error, report, start, stopped};

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Number of times that each transport is measured
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The scenarios to run [default: all]
    #[arg(long = "scenario", value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
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
        let unsupported = scenario.unsupported();
        unsupported.iter().for_each(|line| println!("{line}.\n"));
        let section = match scenario {
            Scenario::Stopped => stopped::section(fps)?,
            Scenario::Start => start::section(plan.rounds, fps)?,
            _ if scenario.cases().is_empty() => String::new(),
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
        wakeup: Vec::new(),
        alone: Vec::new(),
        cases: cases.collect(),
    };
    let title = scenario.title();
    for round in 0..plan.rounds {
        eprintln!("{title}: round {} of {}", round + 1, plan.rounds);
        results.wakeup.push(group::measure_wakeup(fps)?);
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
