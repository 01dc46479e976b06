use super::{frames, open, symbol};
use crate::synthetic::{CALL_LINES, LEAF_LINE, Program};

#[test]
fn inlined_line_has_one_address_in_each_function_around() {
    let mut info = open(&Program::compile(&[]));
    let lines = info.addresses_of_line("leaf.h", LEAF_LINE).expect("lines");
    let copies = info.inlined_copies("leaf").expect("copies");
    for addresses in [lines, copies] {
        assert_eq!(addresses.len(), 2);
        for (address, (around, call)) in addresses
            .into_iter()
            .zip(["one", "two"].into_iter().zip(CALL_LINES))
        {
            let symbol = symbol(&info, around);
            assert!((symbol.address..symbol.end().expect("an end")).contains(&address));
            let frames = frames(&mut info, address);
            assert_eq!(frames[0].0, "leaf");
            assert_eq!(frames[1], (around.to_owned(), format!("a.c:{call}")));
        }
    }
}
