//! The signature of a tracepoint.

use super::{Signature, Untyped, ValuePlace};
use crate::btf::Btf;

/// The register of the sixth argument of a function, in which the reader has the argument that a tracepoint passes on the stack.
const LAST_REGISTER: u8 = 5;

impl Signature {
    /// The signature of the tracepoint `name`, by the function that calls the functions of the tracepoint. Its first parameter is the data of such
    /// a function, and no argument of the tracepoint. The place of argument N is register N: the reader has the arguments in this order.
    ///
    /// # Errors
    ///
    /// If the types do not have the function, or not for certain.
    pub fn of_tracepoint(types: &Btf, name: &str) -> Result<Self, Untyped> {
        let mut signature = Self::of_function(types, &format!("__traceiter_{name}"))?;
        if signature.params.is_empty() {
            return Err(Untyped::Unknown);
        }
        signature.params.remove(0);
        for param in &mut signature.params {
            param.place = match param.place {
                ValuePlace::Register(number @ 1..) => ValuePlace::Register(number - 1),
                ValuePlace::Stack(8) => ValuePlace::Register(LAST_REGISTER),
                _ => ValuePlace::Elsewhere,
            };
        }
        signature.returns = None;
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    #[test]
    fn the_data_of_the_function_is_no_argument() {
        let mut blob = Blob::new();
        let int = blob.int("int", 4);
        let data = blob.pointer(0);
        let names = ["__data", "a", "b", "c", "d", "e", "f", "g"];
        let params = names.map(|name| (name, if name == "__data" { data } else { int }));
        blob.function("__traceiter_many", int, &params);
        blob.function("__traceiter_none", int, &[]);
        let types = Btf::parse(blob.finish()).expect("types");
        let signature = Signature::of_tracepoint(&types, "many").expect("typed");
        let places = signature.params.iter();
        let places: Vec<_> = places.map(|it| (&*it.name, it.place)).collect();
        let register = ValuePlace::Register;
        assert_eq!(
            places,
            [
                ("a", register(0)),
                ("b", register(1)),
                ("c", register(2)),
                ("d", register(3)),
                ("e", register(4)),
                ("f", register(5)),
                ("g", ValuePlace::Elsewhere),
            ]
        );
        assert_eq!(signature.returns, None);
        for name in ["none", "missing"] {
            let error = Signature::of_tracepoint(&types, name).map(|_| ());
            assert_eq!(error, Err(Untyped::Unknown));
        }
    }
}
