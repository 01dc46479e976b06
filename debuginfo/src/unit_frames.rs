//! A decoded unit with the names of its functions and files, for the lines of addresses.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::UnitRef;

use crate::budget::Budget;
use crate::error::LookupError;
use crate::names::Names;
use crate::paths;
use crate::reader::Slice;
use crate::scopes;
use crate::unit_lines::UnitLines;

/// A unit, and the names in it.
#[derive(Debug)]
pub(crate) struct UnitFrames {
    lines: UnitLines,
    /// Of each scope.
    functions: Vec<Option<Arc<str>>>,
    /// The paths of the files that scopes and rows name.
    files: HashMap<u64, String>,
}

/// A line, with the function around.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) function: Option<&'a str>,
    pub(crate) path: Option<&'a str>,
    pub(crate) line: u64,
}

impl UnitFrames {
    /// Decodes `unit`.
    pub(crate) fn decode<'a>(
        unit: UnitRef<'_, Slice<'a>>,
        names: &mut Names<'_, 'a>,
        budget: &mut Budget,
    ) -> Result<Self, LookupError> {
        let mut functions = Vec::new();
        let lines = UnitLines::decode(unit, budget, |attributes, budget| {
            let name = names.of_entry(unit, attributes, budget)?;
            functions.push(name.map(|name| name.text));
            Ok(())
        })?;
        let mut files = HashMap::new();
        if let Some(program) = &unit.line_program {
            let calls = lines.scopes.iter().filter_map(|scope| scope.call);
            let named = calls
                .map(|call| call.file)
                .chain(lines.rows().map(|row| row.file));
            for index in named {
                if !files.contains_key(&index)
                    && let Some(path) = paths::of_file(unit, program.header(), index, budget)?
                {
                    files.insert(index, path);
                }
            }
        }
        Ok(Self {
            lines,
            functions,
            files,
        })
    }

    /// The frames of the code at `address`, the innermost first.
    pub(crate) fn at(
        &self,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Vec<Frame<'_>>, LookupError> {
        let chain = scopes::chains(&self.lines.scopes, &[address], budget)?;
        let chain = chain.concat();
        let places = self.lines.places(&chain, address);
        let frames = places.into_iter().enumerate().map(|(level, place)| {
            let scope = chain.get(level);
            let (file, line) = place.unwrap_or_default();
            Frame {
                function: scope.and_then(|&scope| self.functions[scope].as_deref()),
                path: self.files.get(&file).map(String::as_str),
                line,
            }
        });
        Ok(frames.collect())
    }
}
