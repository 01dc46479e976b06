//! ctrl-C: the first one ends the run, the second one the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::stop::{StopReason, StopSignal};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// What shells report for a process that a signal has killed is this plus the signal.
const KILLED: i32 = 128;

/// From now on signals request `stop` instead of killing the process; when it has been requested, they kill.
pub(crate) fn listen(stop: &StopSignal) -> io::Result<()> {
    let armed = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // In the handler itself, so that it works however stuck the process is.
        flag::register_conditional_shutdown(signal, KILLED + signal, Arc::clone(&armed))?;
    }
    let mut signals = Signals::new(SIGNALS)?;
    let stop = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                armed.store(true, Ordering::SeqCst);
                stop.request(StopReason::Signal);
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_signal_asks_for_the_end() {
        let stop = StopSignal::default();
        listen(&stop).expect("listen");
        signal_hook::low_level::raise(SIGHUP).expect("raise");
        assert_eq!(stop.wait(Duration::from_secs(60)), Some(StopReason::Signal));
    }
}
