use address::Gva;

use super::{addresses, frames, open, symbol};
use crate::SourceFrame;
use crate::synthetic::Program;

#[test]
fn lines_of_each_address_are_those_of_addr2line() {
    for flags in [
        &["-gdwarf-4"][..],
        &["-gdwarf-5"],
        &["-gdwarf-5", "-gz=zlib"],
    ] {
        let program = Program::compile(flags);
        let mut info = open(&program);
        let mut inlined = 0;
        for name in ["one", "two", "begin", "other"] {
            let symbol = symbol(&info, name);
            let first = symbol.address.0;
            for address in first..first + symbol.size.clamp(1, 0x40) {
                let found = frames(&mut info, Gva(address));
                if found.is_empty() || found[0].0 == "??" {
                    // The padding behind the function.
                    assert!(address > first + 4, "{flags:?} {name}");
                    break;
                }
                let expected = program.addr2line(address);
                assert_eq!(found, expected, "{flags:?} {name} {address:#x}");
                inlined += usize::from(found.len() > 1);
            }
        }
        assert!(inlined > 0);
    }
}

#[test]
fn code_of_an_assembler_has_lines_without_a_function() {
    let mut info = open(&Program::compile(&[]));
    let code = symbol(&info, "code").address;
    let frames = info.lines_at(code).expect("lines");
    let expected = SourceFrame {
        function: None,
        file: Some("code.S".to_owned()),
        line: 4,
    };
    assert_eq!(frames, [expected]);
    let places = info.places_of_line("code.S", 4).expect("code");
    assert_eq!(addresses(&places), [code]);
    // Code of an assembler has no variables.
    assert_eq!(info.variables(&places), Ok(vec![Vec::new()]));
}
