//! Values as C initializers.

use std::fmt::{self, Display, Formatter};

use super::tree::Value;

const INDENT: &str = "    ";
/// Arrays of short values are written in one line up to this length.
const LINE_CHARACTERS: usize = 100;

impl Display for Value {
    /// Writes structs with a line for each member. The text has names and strings of the guest as they are: the caller escapes each line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write(f, self, 0)
    }
}

fn write(f: &mut Formatter<'_>, value: &Value, level: usize) -> fmt::Result {
    match value {
        Value::Bool(value) => write!(f, "{value}"),
        Value::Signed(value) => write!(f, "{value}"),
        // Addresses and masks are read in hexadecimal.
        Value::Unsigned(value) if *value > u64::from(u32::MAX) => write!(f, "{value:#x}"),
        Value::Unsigned(value) => write!(f, "{value}"),
        Value::Enum { number, name } => match name {
            Some(name) => write!(f, "{name} ({number})"),
            None => write!(f, "{number}"),
        },
        Value::Pointer(target) => {
            write!(f, "{:#x}", target.address.0)?;
            match &target.symbol {
                Some(symbol) => write!(f, " <{symbol}>"),
                None => Ok(()),
            }
        }
        Value::String { text, cut } => {
            write_string(f, text)?;
            f.write_str(if *cut { "…" } else { "" })
        }
        Value::Array { elements, omitted } => write_array(f, elements, *omitted, level),
        Value::Struct { fields, omitted: 0 } if fields.is_empty() => f.write_str("{}"),
        Value::Struct { fields, omitted } => {
            f.write_str("{\n")?;
            for field in fields {
                write!(f, "{}.{} = ", INDENT.repeat(level + 1), field.name)?;
                write(f, &field.value, level + 1)?;
                f.write_str(",\n")?;
            }
            if *omitted > 0 {
                writeln!(f, "{}… {omitted} more", INDENT.repeat(level + 1))?;
            }
            write!(f, "{}}}", INDENT.repeat(level))
        }
        Value::Bytes(bytes) => {
            f.write_str("0x")?;
            bytes
                .iter()
                .rev()
                .try_for_each(|byte| write!(f, "{byte:02x}"))
        }
        Value::Fault(at) => write!(f, "<fault {:#x}>", at.0),
        Value::Omitted => f.write_str("…"),
    }
}

fn write_string(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            c if c.is_control() => write!(f, "\\x{:02x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

fn write_array(
    f: &mut Formatter<'_>,
    elements: &[Value],
    omitted: u64,
    level: usize,
) -> fmt::Result {
    let rest = (omitted > 0).then(|| format!("… {omitted} more"));
    let is_nested = |value: &Value| matches!(value, Value::Struct { .. } | Value::Array { .. });
    if !elements.iter().any(is_nested) {
        let texts = elements.iter().map(ToString::to_string).chain(rest.clone());
        let line = texts.collect::<Vec<_>>().join(", ");
        if line.chars().count() <= LINE_CHARACTERS {
            return write!(f, "{{{line}}}");
        }
    }
    let indent = INDENT.repeat(level + 1);
    f.write_str("{\n")?;
    for element in elements {
        f.write_str(&indent)?;
        write(f, element, level + 1)?;
        f.write_str(",\n")?;
    }
    if let Some(rest) = rest {
        writeln!(f, "{indent}{rest}")?;
    }
    write!(f, "{}}}", INDENT.repeat(level))
}
