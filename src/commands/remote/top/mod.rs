//! `hyprobe top`: shows how often each probe fires, during the run.

mod history;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use control::api::ProblemKind;
use control::{Client, ClientError};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::history::History;
use super::connect::connect;
use super::error::RemoteError;
use crate::cli::TopArgs;
use crate::exit::Exit;

/// Shows the probes, the most frequent first, until the user quits or the run ends.
pub(crate) fn top(args: &TopArgs) -> Result<Exit, RemoteError> {
    if !io::stdout().is_terminal() {
        return Err(RemoteError::NoTerminal);
    }
    let client = connect(&args.run)?;
    let mut history = History::default();
    // The first look comes before the screen is taken, so the error of a wrong socket is printed in the ordinary way.
    look(&client, &mut history)?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &client, history, args.interval);
    ratatui::try_restore()?;
    shown.map(|()| Exit::Done)
}

fn show(
    terminal: &mut DefaultTerminal,
    client: &Client,
    mut history: History,
    interval: Duration,
) -> Result<(), RemoteError> {
    loop {
        let next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view::draw(frame, &history))?;
            match wait(next)? {
                NextAction::Look => break,
                NextAction::Draw => (),
                NextAction::Leave => return Ok(()),
            }
        }
        match look(client, &mut history) {
            Ok(()) => (),
            // The run is over, and the socket is gone.
            Err(ClientError::Connect { .. } | ClientError::Broken(_)) => return Ok(()),
            // Others have all connections: the screen stays until the next look.
            Err(ClientError::Refused(refused)) if refused.is(ProblemKind::Busy) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

fn look(client: &Client, history: &mut History) -> Result<(), ClientError> {
    let machine = client.machine()?;
    history.add(machine, client.probes()?);
    Ok(())
}

/// The next action of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextAction {
    /// Read the state again.
    Look,
    /// The screen has another size.
    Draw,
    /// The user quits.
    Leave,
}

/// Waits until `next`, or for the user.
fn wait(next: Instant) -> io::Result<NextAction> {
    while event::poll(next.saturating_duration_since(Instant::now()))? {
        match event::read()? {
            Event::Key(key) if leaves(key) => return Ok(NextAction::Leave),
            Event::Resize(..) => return Ok(NextAction::Draw),
            _ => (),
        }
    }
    Ok(NextAction::Look)
}

/// In the terminal's raw mode, Ctrl-C is a key like any other.
fn leaves(key: KeyEvent) -> bool {
    let is_asked = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    };
    is_asked && key.kind == KeyEventKind::Press
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_leave() {
        let key = |code, modifiers| leaves(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
    }
}
