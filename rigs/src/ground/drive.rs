//! The work of the driving thread while the guest runs.

use std::time::Duration;

use events::ProbeId;

use super::events::GroundEvent;
use super::new_probe;
use crate::busy::guest::Live;
use errors::chain;

const LIMIT: Duration = Duration::from_secs(200);
/// Rounds of the event `modules`, as in the event's parameters.
const ROUNDS: usize = 4;

/// `modules`: in each round a task sleeps in module code with followed calls in flight. Then, in turn, all probes in
/// modules are removed, and registered again, so that the module is unloaded in each of the two states. Whenever it is
/// unloaded, every plant is in the kernel's text or in that of another module.
pub(super) fn drive(live: &Live<'_>, event: &GroundEvent, is_probed: bool) -> Result<(), String> {
    if event.name != "modules" {
        return Ok(());
    }
    let mut removes = true;
    for round in (1..=ROUNDS).rev() {
        live.await_text(&format!("workload: asleep={round}"), LIMIT)?;
        if is_probed && removes {
            remove_those_in_modules(live, event)?;
        } else if is_probed {
            register_those_in_modules(live, event)?;
        }
        removes = !removes;
        live.type_line()?;
        live.await_text(&format!("workload: unloaded={round}"), LIMIT)?;
        check_for_strays(live)?;
        live.type_line()?;
    }
    Ok(())
}

fn check_for_strays(live: &Live<'_>) -> Result<(), String> {
    let paused = live.control.pause_all();
    let strays = live.engine.stray_plants(&paused).map_err(chain)?;
    if strays.is_empty() {
        Ok(())
    } else {
        Err(format!("the plants at {strays:x?} are in nobody's text"))
    }
}

fn remove_those_in_modules(live: &Live<'_>, event: &GroundEvent) -> Result<(), String> {
    let paused = live.control.pause_all();
    let ids = live.engine.inventory().ids();
    let in_modules: Vec<ProbeId> = ids[ids.len() - event.in_modules.len()..].to_vec();
    let removed = live
        .engine
        .unregister(&paused, &in_modules)
        .map_err(chain)?;
    if removed < in_modules.len() {
        return Err(format!("only {removed} probes in modules were removed"));
    }
    Ok(())
}

fn register_those_in_modules(live: &Live<'_>, event: &GroundEvent) -> Result<(), String> {
    let new = event
        .in_modules
        .iter()
        .map(|spec| new_probe(spec))
        .collect::<Result<Vec<_>, _>>()?;
    let paused = live.control.pause_all();
    live.engine.register(&paused, &new).map_err(chain)?;
    Ok(())
}
