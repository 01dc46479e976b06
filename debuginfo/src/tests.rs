mod bounds;
mod copies;
mod damage;
mod files;
mod frames;
mod handmade;
mod lines;
mod modules;
mod variables;

use address::Gva;

use crate::synthetic::Program;
use crate::{DebugInfo, SourcePlace};

fn open(program: &Program) -> DebugInfo {
    DebugInfo::open(&program.path()).expect("a file with debug information")
}

fn symbol(info: &DebugInfo, name: &str) -> introspect::Symbol {
    info.symbols().lookup(name).expect(name)
}

fn addresses(places: &[SourcePlace]) -> Vec<Gva> {
    places.iter().map(|place| place.address).collect()
}

/// The function and `file:line` of each frame.
fn frames(info: &mut DebugInfo, address: Gva) -> Vec<(String, String)> {
    let frames = info.lines_at(address).expect("lines");
    let shown = frames.into_iter().map(|frame| {
        let file = frame.file.unwrap_or_default();
        let function = frame.function.unwrap_or_else(|| "??".to_owned());
        (function, format!("{file}:{}", frame.line))
    });
    shown.collect()
}
