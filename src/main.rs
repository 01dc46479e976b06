//! The `hyprobe` command.

fn main() {}
