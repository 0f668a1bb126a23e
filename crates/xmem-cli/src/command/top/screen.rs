// SPDX-License-Identifier: MPL-2.0

//! The state of the screen, and how it is drawn.

use std::collections::HashMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table, TableState};
use xmem_core::PoolStats;
use xmem_core::discovery::printable;

use super::histogram::Histogram;
use super::rows::{Rows, latency_ns, missed};
use crate::format::size;
use crate::pools::{Pool, headline, no_pools};

/// The figure of a pool without statistics, and of all pools in the order of their names.
const NO_FIGURE: f64 = -1.0;

type Figure = fn(&PoolStats) -> f64;

/// The orders of the pools, with the figures by which they are sorted. Pools with larger figures come first, and pools with the same
/// one are in the order of their names.
const ORDERS: [(&str, Figure); 5] = [
    ("name", |_| NO_FIGURE),
    ("fps", |stats| stats.fps),
    ("consumers", |stats| stats.consumers.len() as f64),
    ("missed", |stats| missed(stats) as f64),
    ("latency", |stats| latency_ns(stats) as f64),
];

#[derive(Debug, Default)]
pub(super) struct Screen {
    pools: Vec<Pool>,
    has_answer: bool,
    /// The latencies of each pool, by its name.
    latencies: HashMap<String, Histogram>,
    /// The reason why the figures are not updated.
    error: Option<String>,
    /// The index of the order.
    order: usize,
    is_frozen: bool,
    /// The name of the selected pool, which may no longer exist.
    selected: Option<String>,
    /// Only the selected pool is shown.
    is_open: bool,
}

impl Screen {
    pub(super) fn update(&mut self, answer: Result<Vec<Pool>, String>) {
        if self.is_frozen {
            return;
        }
        match answer {
            Ok(pools) => {
                self.note_latencies(&pools);
                (self.pools, self.error) = (pools, None);
                self.has_answer = true;
            }
            Err(error) => self.error = Some(error),
        }
        self.arrange();
    }

    fn note_latencies(&mut self, pools: &[Pool]) {
        let mut before = std::mem::take(&mut self.latencies);
        for (pool, stats) in pools.iter().filter_map(|it| Some((it, it.stats.as_ref()?))) {
            let mut histogram = before.remove(&pool.name).unwrap_or_default();
            histogram.add(stats);
            self.latencies.insert(pool.name.clone(), histogram);
        }
    }

    fn arrange(&mut self) {
        let (_, figure) = ORDERS[self.order];
        let figure = |pool: &Pool| pool.stats.as_ref().map_or(NO_FIGURE, figure);
        self.pools.sort_by(|one, other| {
            let by_figure = figure(other).total_cmp(&figure(one));
            by_figure.then_with(|| one.name.cmp(&other.name))
        });
        if self.selected.is_none() {
            self.selected = self.pools.first().map(|pool| pool.name.clone());
        }
    }

    fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.pools.iter().position(|pool| pool.name == *selected)
    }

    pub(super) fn select(&mut self, step: isize) {
        let last = self.pools.len().saturating_sub(1);
        let at = self
            .position()
            .map_or(0, |at| at.saturating_add_signed(step).min(last));
        self.selected = self.pools.get(at).map(|pool| pool.name.clone());
    }

    pub(super) fn open(&mut self) {
        self.is_open = !self.is_open && self.selected.is_some();
    }

    pub(super) fn close(&mut self) {
        self.is_open = false;
    }

    pub(super) fn sort(&mut self) {
        self.order = (self.order + 1) % ORDERS.len();
        self.arrange();
    }

    pub(super) fn freeze(&mut self) {
        self.is_frozen = !self.is_frozen;
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]);
        let [body, foot] = areas.areas(frame.area());
        match self.selected.as_ref().filter(|_| self.is_open) {
            Some(name) => self.draw_pool(name, frame, body),
            None => self.draw_pools(frame, body),
        }
        let frozen = if self.is_frozen { "FROZEN  " } else { "" };
        let keys = if self.is_open {
            format!("{frozen}q quit  enter back  space freeze")
        } else {
            let (order, _) = ORDERS[self.order];
            format!("{frozen}q quit  enter open  s sort: {order}  space freeze")
        };
        frame.render_widget(Line::from(keys).dim(), foot);
    }

    fn draw_pools(&self, frame: &mut Frame<'_>, area: Rect) {
        let areas = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]);
        let [head, body] = areas.areas(area);
        let stats = || self.pools.iter().filter_map(|pool| pool.stats.as_ref());
        let head_line = match &self.error {
            Some(error) => printable(error),
            // A stopped producer delays the answer.
            None if !self.has_answer => "asking the producers".to_owned(),
            None if self.pools.is_empty() => printable(&no_pools()),
            None => format!(
                "{} pools, {} consumers, {}",
                self.pools.len(),
                stats().map(|it| it.consumers.len()).sum::<usize>(),
                size(stats().map(|it| it.bytes).sum())
            ),
        };
        frame.render_widget(Line::from(head_line).bold(), head);
        if !self.pools.is_empty() {
            draw_rows(
                Rows::of_pools(self.pools.iter(), area.width),
                self.position(),
                frame,
                body,
            );
        }
    }

    fn draw_pool(&self, name: &str, frame: &mut Frame<'_>, area: Rect) {
        let pool = self.pools.iter().find(|pool| pool.name == name);
        let Some(stats) = pool.and_then(|pool| pool.stats.as_ref()) else {
            let state = pool.map_or("closed", |pool| pool.state.words());
            let line = format!("{}: {state}, no statistics", printable(name));
            frame.render_widget(Line::from(line).bold(), area);
            return;
        };
        let mut lines = vec![
            Line::from(headline(stats)).bold(),
            Line::from(format!(
                "frames {} published, {} copied, {} dropped",
                stats.published, stats.copied, stats.dropped
            )),
            Line::from(format!(
                "slots  {} held of {}, at most {}; {}",
                stats.slots_held,
                stats.slots,
                stats.max_slots,
                size(stats.bytes)
            )),
        ];
        for it in stats.consumers.iter().filter(|it| it.waited_for_ns > 0) {
            lines.push(Line::from(format!("waits  for {}", printable(&it.name))).red());
        }
        let latencies = self.latencies.get(name).map(|it| it.lines(area.width));
        let mut latencies = latencies.unwrap_or_default();
        if !latencies.is_empty() {
            latencies.insert(0, "latency of the consumers, at each refresh".to_owned());
        }
        let consumers = Rows::of_consumers(stats, area.width);
        let height = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
        let areas = Layout::vertical([
            Constraint::Length(height(lines.len())),
            // One more line for the titles, and one below. The histogram gets the remaining lines.
            Constraint::Max(height(consumers.cells.len() + 2)),
            Constraint::Fill(1),
        ]);
        let [head, body, rest] = areas.areas(area);
        frame.render_widget(Text::from(lines), head);
        draw_rows(consumers, None, frame, body);
        if usize::from(rest.height) >= latencies.len() {
            frame.render_widget(Text::from_iter(latencies), rest);
        }
    }
}

fn draw_rows(rows: Rows, selected: Option<usize>, frame: &mut Frame<'_>, area: Rect) {
    let widths: Vec<_> = rows
        .columns
        .iter()
        .map(|(_, width, _)| Constraint::Length(*width))
        .collect();
    let aligned = |cells: Vec<String>| {
        let cells = cells.into_iter().zip(&rows.columns);
        Row::new(cells.map(|(cell, (_, _, is_number))| {
            let cell = Text::from(cell);
            if *is_number {
                cell.right_aligned()
            } else {
                cell
            }
        }))
    };
    let titles = rows
        .columns
        .iter()
        .map(|(title, _, _)| (*title).to_owned())
        .collect();
    let table = Table::new(rows.cells.iter().cloned().map(aligned), widths)
        .header(aligned(titles).bold())
        .row_highlight_style(Style::new().reversed());
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    #[test]
    fn no_answer_is_not_an_empty_list() {
        let mut terminal = Terminal::new(TestBackend::new(60, 5)).unwrap();
        let mut screen = Screen::default();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        assert!(text.contains("asking") && !text.contains("no pools"));
        screen.update(Ok(Vec::new()));
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        assert!(terminal.backend().to_string().contains("no pools"));
    }
}
