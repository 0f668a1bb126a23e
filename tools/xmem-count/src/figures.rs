// SPDX-License-Identifier: MPL-2.0

//! The figures of a frame, and the tables that show them.

use clap::ValueEnum;

use crate::mark::Mark;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    Instructions,
    CodeLines,
    DataLines,
    CodePages,
    DataPages,
    Locked,
    Mutexes,
    Allocations,
    Frees,
    ClockReads,
    SystemCalls,
}

/// One number for each column.
pub(crate) type Figures = [u64; Column::SystemCalls as usize + 1];

/// The cost of one stage of a frame: of all code, and of the plugin's code.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) all: Figures,
    pub(crate) ours: Figures,
}

/// The cost of one stage of a frame in one case.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    /// The mark at which the stage begins.
    pub(crate) part: Mark,
    pub(crate) cost: Cost,
}

impl Row {
    /// The figures of the row, each with its owner.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&'static str, &Figures)> {
        let lines = [("all", &self.cost.all), ("ours", &self.cost.ours)];
        lines.into_iter().take(1 + usize::from(self.has_ours()))
    }

    pub(crate) fn has_ours(&self) -> bool {
        self.cost.ours != Figures::default()
    }
}

/// The median of each column. Columns are independent, because a growing table or another thread adds to some figures of a single
/// frame.
pub(crate) fn median(frames: &[Cost]) -> Cost {
    let middle = |of: fn(&Cost) -> &Figures| {
        std::array::from_fn(|column| {
            let mut figures: Vec<u64> = frames.iter().map(|cost| of(cost)[column]).collect();
            figures.sort_unstable();
            figures.get(figures.len() / 2).copied().unwrap_or_default()
        })
    };
    Cost {
        all: middle(|cost| &cost.all),
        ours: middle(|cost| &cost.ours),
    }
}

/// Prints a Markdown table for each stage.
pub(crate) fn print(rows: &[Row]) {
    let parts = [
        (Mark::Acquire, "producer: acquire from the pool"),
        (Mark::Push, "producer: push to return"),
        (Mark::Loop, "consumer: whole loop"),
        (Mark::Take, "consumer: receive a frame that is there"),
        (Mark::Release, "consumer: drop the frame"),
    ];
    for (part, title) in parts {
        println!("\n| {title} | {} |", names(" | "));
        println!("|---|{}", "--:|".repeat(Column::value_variants().len()));
        for row in rows.iter().filter(|row| row.part == part) {
            for (whose, figures) in row.lines() {
                println!("| {}, {whose} | {} |", row.case, words(figures, " | "));
            }
        }
    }
}

/// The names of the columns.
pub(crate) fn names(between: &str) -> String {
    let names = Column::value_variants().iter().map(|column| name(*column));
    names.collect::<Vec<_>>().join(between)
}

/// The name of a value on the command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(crate) fn words(figures: &Figures, between: &str) -> String {
    figures.map(|figure| figure.to_string()).join(between)
}
