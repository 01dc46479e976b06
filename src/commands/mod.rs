//! The subcommands that the runs do not use.

pub(crate) mod images;
