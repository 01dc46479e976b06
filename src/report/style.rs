//! Colours of terminals.

use std::fmt::{self, Display};

/// Colour and width of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
    /// Columns of the terminal, where lines end at its edge.
    pub(crate) width: Option<usize>,
}

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// No meaning.
    Plain,
    /// A part that every line has.
    Faint,
    /// A heading.
    Strong,
    /// A name.
    Name,
    /// Success.
    Good,
    /// A warning.
    Warning,
    /// A failure.
    Bad,
}

impl Ink {
    const fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Faint => "\x1b[2m",
            Self::Strong => "\x1b[1m",
            Self::Name => "\x1b[36m",
            Self::Good => "\x1b[32m",
            Self::Warning => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// The columns of the terminal, if a standard stream is a terminal.
pub(super) fn columns() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size()?;
    Some(usize::from(columns))
}

impl Style {
    /// No colour, no edge.
    pub const fn plain() -> Self {
        Self {
            colour: false,
            width: None,
        }
    }

    /// The style of a stream: with colour on a terminal with colours, unless `NO_COLOR` is set.
    pub(crate) fn for_stream(is_terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_none_or(|term| term == "dumb");
        Self {
            colour: is_terminal && !dumb && set("NO_COLOR").is_none(),
            width: is_terminal.then(columns).flatten(),
        }
    }

    /// Whether the output has colour.
    pub(crate) const fn has_colour(self) -> bool {
        self.colour
    }

    /// `text` in this ink.
    pub(crate) const fn paint<T: Display>(self, ink: Ink, text: T) -> Painted<T> {
        Painted {
            ink: if self.colour { ink } else { Ink::Plain },
            text,
        }
    }
}

/// Text in an ink.
#[derive(Debug)]
pub(crate) struct Painted<T> {
    ink: Ink,
    text: T,
}

impl<T: Display> Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ink == Ink::Plain {
            return self.text.fmt(f);
        }
        f.write_str(self.ink.sequence())?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}
