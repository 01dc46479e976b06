//! A probe specification from a user or from a client of the control socket.

#![cfg_attr(fuzzing, no_main)]

use hyprobe_fuzz::fuzz_target;
use manifest::ProbeSpec;

fuzz_target!(|text: &str| {
    match text.parse::<ProbeSpec>() {
        Ok(spec) => {
            let printed = spec.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&spec), "{printed}");
            assert!(spec.stands_for(&printed), "{printed}");
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            let _ = (error.to_string(), error.help());
        }
    }
});
