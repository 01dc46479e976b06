//! The progress line on a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// A line on standard error, if standard error is a terminal. Clones share the line.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// The line, if standard error is a terminal.
    pub(crate) fn on_stderr() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        // An error would be one in the template, which the test below excludes.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// A line that is never drawn.
    #[cfg(test)]
    pub(crate) fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
        }
    }

    /// Shows the present step.
    pub(crate) fn say(&self, text: impl Into<String>) {
        if !self.bar.is_hidden() && !self.bar.is_finished() {
            self.bar.enable_steady_tick(TICK);
            self.bar.set_message(text.into());
        }
    }

    /// Shows the present step without a thread that moves the line: for threads that may start no thread.
    pub(crate) fn show(&self, text: impl Into<String>) {
        if !self.bar.is_hidden() && !self.bar.is_finished() {
            self.bar.set_message(text.into());
        }
    }

    /// Stops the thread that moves the line, until the next message.
    pub(crate) fn rest(&self) {
        self.bar.disable_steady_tick();
    }

    /// Lets `write` write to the terminal without the line in the way.
    pub(crate) fn pause<R>(&self, write: impl FnOnce() -> R) -> R {
        self.bar.suspend(write)
    }

    /// Removes the line for good.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str = "{spinner} {msg} ({elapsed})";

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_is_one() {
        super::ProgressStyle::with_template(super::TEMPLATE).expect("template");
    }
}
