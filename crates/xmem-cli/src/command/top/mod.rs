// SPDX-License-Identifier: MPL-2.0

//! `xmem top`

mod histogram;
mod rows;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Error;
use crate::cli::{Format, Top};
use crate::format::{Table, json};
use crate::pools::{self, Pool};
use crate::tool::on_signals;
use screen::Screen;

enum Event {
    /// New figures.
    Pools(Result<Vec<Pool>, String>),
    Key(KeyEvent),
    /// The size of the terminal changed.
    Resized,
    Quit,
}

pub(crate) fn run(top: &Top, out: &mut impl Write) -> Result<(), Error> {
    let format = top.output.format;
    if top.once {
        return print(pools::all()?, format, out);
    }
    if format == Format::Json {
        return Err("use --format json with --once, or use `xmem watch POOL --format json`".into());
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("there is no terminal: use `xmem top --once` or `xmem watch POOL`".into());
    }
    let (sender, events) = channel();
    let quit = sender.clone();
    on_signals(&[SIGHUP, SIGINT, SIGTERM], move || {
        quit.send(Event::Quit).is_ok()
    })?;
    ask(top.interval, sender.clone())?;
    read_keys(sender)?;
    // ratatui also restores the terminal in a panic.
    let mut terminal = ratatui::try_init()?;
    let mut screen = Screen::default();
    let mut result = Ok(());
    while result.is_ok() {
        result = terminal.draw(|frame| screen.draw(frame)).map(drop);
        match events.recv() {
            Ok(Event::Pools(answer)) => screen.update(answer),
            Ok(Event::Key(key)) if !handle_key(&mut screen, key) => break,
            Ok(Event::Key(_) | Event::Resized) => {}
            Ok(Event::Quit) | Err(_) => break,
        }
    }
    drop(terminal);
    ratatui::try_restore()?;
    Ok(result?)
}

/// Handles a key. Returns `false` if the key ends the command.
fn handle_key(screen: &mut Screen, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => return false,
        KeyCode::Char('q') => return false,
        KeyCode::Up | KeyCode::Char('k') => screen.select(-1),
        KeyCode::Down | KeyCode::Char('j') => screen.select(1),
        KeyCode::Enter => screen.open(),
        KeyCode::Esc | KeyCode::Backspace => screen.close(),
        KeyCode::Char('s') => screen.sort(),
        KeyCode::Char(' ') => screen.freeze(),
        _ => {}
    }
    true
}

/// Queries the pools on a separate thread, because the query of a stopped producer takes a second, and keys must not wait for it.
fn ask(interval: Duration, events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().spawn(move || {
        let ask = || pools::all().map_err(|error| error.to_string());
        while events.send(Event::Pools(ask())).is_ok() {
            thread::sleep(interval);
        }
    })?;
    Ok(())
}

fn read_keys(events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) => Event::Key(key),
                Ok(event::Event::Resize(..)) => Event::Resized,
                Ok(_) => continue,
                // The terminal was closed.
                Err(_) => Event::Quit,
            };
            let is_last = matches!(event, Event::Quit);
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(())
}

fn print(pools: Vec<Pool>, format: Format, out: &mut impl Write) -> Result<(), Error> {
    if format == Format::Json {
        return json(out, &pools::as_json(&pools)?);
    }
    if pools.is_empty() {
        writeln!(out, "{}", pools::no_pools())?;
        return Ok(());
    }
    let mut table = Table::new(rows::POOLS.titles, rows::POOLS.numbers);
    for pool in &pools {
        table.row(rows::of_pool(pool));
    }
    table.print(out)
}
