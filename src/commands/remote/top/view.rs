//! The screen.

use control::api::Machine;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::history::{History, KEPT, Row};
use crate::commands::remote::words::{self, time};
use crate::report::{printable, total};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws everything anew.
pub(super) fn draw(frame: &mut Frame<'_>, history: &History) {
    let [head, body] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(frame.area());
    if let Some(machine) = &history.machine {
        let [guest, changes] = title(machine, history);
        let lines = vec![Line::from(guest), Line::from(changes).dim()];
        frame.render_widget(Paragraph::new(lines), head);
    }
    let columns = [
        Constraint::Length(8),
        Constraint::Length(u16::try_from(KEPT).unwrap_or(u16::MAX)),
        Constraint::Length(10),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Min(16),
    ];
    let right = |text| Cell::from(Line::from(text).right_aligned());
    let headings = TableRow::new([
        right("HITS/S"),
        Cell::default(),
        right("HITS"),
        right("MISSED"),
        Cell::from("TIER"),
        Cell::from("STATE"),
        Cell::from("PROBE"),
    ]);
    let highest = history
        .rows
        .iter()
        .flat_map(|row| &row.rates)
        .copied()
        .max()
        .unwrap_or(0);
    // Rows below the screen need not be drawn.
    let rows = history
        .rows
        .iter()
        .take(usize::from(body.height))
        .map(|row| shown(row, highest));
    let table = Table::new(rows, columns).header(headings.style(Style::new().bold()));
    frame.render_widget(table, body);
}

/// The guest in a line, and the cost of changes in another.
fn title(machine: &Machine, history: &History) -> [String; 2] {
    let state = words::machine(machine.state);
    let pauses = &machine.pauses;
    [
        format!(
            "{state} for {} s ({}, {} vCPUs): {} probes, {} hits/s",
            machine.ts_ns / 1_000_000_000,
            machine.accel,
            machine.cpus,
            history.rows.len(),
            history.rate(),
        ),
        format!(
            "{} pauses for changes, the longest {}; q to leave",
            pauses.count,
            time(pauses.held_max_ns),
        ),
    ]
}

fn shown(row: &Row, highest: u64) -> TableRow<'static> {
    let summary = &row.probe.summary;
    let missed = total(summary.missed.values().copied());
    let number = |number: u64| Cell::from(Line::from(number.to_string()).right_aligned());
    TableRow::new([
        number(row.rate()),
        Cell::from(line(row, highest)),
        number(summary.hits),
        number(missed),
        Cell::from(words::tier(summary.tier)),
        Cell::from(words::probe(summary.state)),
        Cell::from(printable(row.probe.name.as_ref().unwrap_or(&summary.probe)).into_owned()),
    ])
}

/// The rates as a line of bars, all probes on the same scale.
fn line(row: &Row, highest: u64) -> String {
    let bar = |rate: &u64| {
        let step = u128::from(*rate) * (BARS.len() as u128 - 1) / u128::from(highest.max(1));
        let bar = usize::try_from(step).ok().and_then(|step| BARS.get(step));
        match (rate, bar) {
            (0, _) | (_, None) => ' ',
            (_, Some(bar)) => *bar,
        }
    };
    row.rates.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use control::api::MachineState;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::history::tests::{machine, probe};
    use super::*;

    fn screen(history: &History, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, history)).expect("drawn");
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width.max(1)));
        lines
            .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn the_busiest_probe_is_on_top_with_the_highest_bar() {
        let mut history = History::default();
        history.add(machine(0), vec![probe(1, 0), probe(2, 0)]);
        history.add(machine(1_000_000_000), vec![probe(1, 7), probe(2, 300)]);
        let mut second = machine(2_000_000_000);
        second.pauses.count = 3;
        second.pauses.held_max_ns = 12_345;
        second.state = MachineState::Paused;
        let mut missing = probe(2, 1000);
        missing.summary.missed = [("maxactive".to_owned(), 4)].into();
        history.add(second, vec![probe(1, 14), missing]);
        let expected = [
            "paused for 2 s (kvm, 2 vCPUs): 2 probes, 707 hits/s",
            "3 pauses for changes, the longest 12.3 µs; q to leave",
            "  HITS/S                        HITS MISSED TIER      STATE    PROBE",
            "     700 ▄█                     1000      4 emulated  armed    kprobe:f2",
            "       7 ▁▁                       14      0 emulated  armed    kprobe:f1",
            "",
        ];
        assert_eq!(screen(&history, 80, 6), expected);
    }

    #[test]
    fn nothing_at_all_can_be_drawn_on_any_screen() {
        let mut history = History::default();
        for (width, height) in [(80, 24), (1, 1), (10, 3)] {
            screen(&history, width, height);
        }
        history.add(machine(0), Vec::new());
        assert!(screen(&history, 80, 24)[0].contains("0 probes"));
        let many = (1..100).map(|id| probe(id, id)).collect();
        history.add(machine(1), many);
        for (width, height) in [(80, 24), (1, 1), (10, 3)] {
            screen(&history, width, height);
        }
        assert!(
            screen(&history, 80, 24)[23].contains("kprobe:f"),
            "as many as there is room for"
        );
    }
}
