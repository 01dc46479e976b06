//! The edge of a terminal, which moves when the user changes the window.

use std::time::{Duration, Instant};

use super::style::columns;

/// The shortest time between two looks at the terminal.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The edge at which lines end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// `None` for an output without an edge.
    columns: Option<usize>,
    looked_at: Instant,
    look: fn() -> Option<usize>,
}

impl Edge {
    /// An edge behind `columns`, which follows the terminal.
    pub(super) fn new(columns: Option<usize>) -> Self {
        Self {
            columns,
            looked_at: Instant::now(),
            look: self::columns,
        }
    }

    /// The columns in front of the edge at the time `now`.
    pub(super) fn columns(&mut self, now: Instant) -> Option<usize> {
        let passed = now.saturating_duration_since(self.looked_at);
        if self.columns.is_some() && passed >= LOOK_INTERVAL {
            self.looked_at = now;
            self.columns = (self.look)().or(self.columns);
        }
        self.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(columns: Option<usize>, look: fn() -> Option<usize>) -> Edge {
        Edge {
            look,
            ..Edge::new(columns)
        }
    }

    #[test]
    fn changed_width_is_followed_once_a_second() {
        let mut edge = edge(Some(80), || Some(60));
        let start = edge.looked_at;
        assert_eq!(edge.columns(start + LOOK_INTERVAL / 2), Some(80));
        assert_eq!(edge.columns(start + LOOK_INTERVAL), Some(60));
    }

    #[test]
    fn output_without_an_edge_gets_none() {
        let mut edge = edge(None, || Some(60));
        let later = edge.looked_at + LOOK_INTERVAL;
        assert_eq!(edge.columns(later), None);
    }

    #[test]
    fn last_width_stays_without_a_terminal() {
        let mut edge = edge(Some(80), || None);
        let later = edge.looked_at + LOOK_INTERVAL;
        assert_eq!(edge.columns(later), Some(80));
    }
}
