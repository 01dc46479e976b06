//! Watchpoints at data of tasks.

use events::ProbeState;

use super::task_guest::{FIRST, FLAGS, Guest, LEADER, LINKS, OF_PROCESS, RCU, SECOND, SWAPPER};

#[test]
fn write_to_a_task_is_a_hit_from_its_start_to_its_end() {
    let guest = Guest::watching();
    assert_eq!(guest.state(), ProbeState::Pending);
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    guest.write(FIRST);
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Gone);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn task_that_boots_the_kernel_is_watched_once_the_kernel_has_booted() {
    let guest = Guest::new(&[OF_PROCESS], "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    let reason = guest.watched.rig.probe(0).reason.expect("a reason");
    assert!(reason.starts_with("tasks are watched from"), "{reason}");
    guest.boot();
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn task_that_has_ended_before_the_kernel_has_booted_is_missed() {
    let guest = Guest::new(&[OF_PROCESS], "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.link(&[]);
    guest.boot();
    assert_eq!(guest.state(), ProbeState::Pending);
    assert_eq!(guest.missed(), Some(1));
}

#[test]
fn other_probe_that_pauses_at_the_start_of_a_task_does_not_watch_it_early() {
    let probes = [OF_PROCESS, "kretprobe:wake_up_new_task"];
    let guest = Guest::new(&probes, "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.calls(guest.starts, FIRST);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
}

#[test]
fn next_process_of_the_number_is_watched() {
    let guest = Guest::watching();
    for task in [FIRST, SECOND] {
        guest.number(task, 7, 7);
        guest.link(&[task]);
        assert!(guest.calls(guest.starts, task));
        assert_eq!(guest.state(), ProbeState::Armed);
        guest.write(task);
        guest.end(task);
    }
    assert_eq!(guest.watched.writes(), [(0, 5), (0, 5)]);
    // The kernel gives up the struct of a former process later.
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert!(!guest.calls(guest.ends, SECOND + RCU));
    assert_eq!(guest.watched.protected(), [FIRST]);
}

#[test]
fn process_of_a_number_whose_former_struct_is_still_there_is_watched() {
    let guest = Guest::watching();
    for task in [FIRST, SECOND] {
        guest.number(task, 7, 7);
        guest.link(&[task]);
        assert!(guest.calls(guest.starts, task));
    }
    assert!(!guest.calls(guest.ends, FIRST + RCU));
    guest.write(SECOND);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn other_tasks_need_no_pause() {
    let guest = Guest::watching();
    guest.number(FIRST, 8, 8);
    assert!(!guest.calls(guest.starts, FIRST));
    // Another thread of the process.
    guest.number(FIRST, 9, 7);
    assert!(!guest.calls(guest.starts, FIRST));
    assert!(!guest.calls(guest.ends, FIRST + RCU));
    assert!(!guest.calls(guest.starts, 0xdead_0000));
    assert_eq!(guest.state(), ProbeState::Pending);
}

#[test]
fn process_whose_other_thread_calls_execve_is_watched_with_a_miss() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    // The other thread takes the number, and the kernel releases the former first thread.
    guest.number(SECOND, 7, 7);
    guest.number(FIRST, 9, 7);
    guest.put(FIRST + LEADER, SECOND);
    guest.link(&[SECOND]);
    assert!(guest.calls(guest.ends, FIRST + RCU));
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.missed(), Some(1));
    guest.write(SECOND);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
}

#[test]
fn process_that_ends_soon_after_its_other_thread_calls_execve_is_a_miss() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.put(FIRST + LEADER, SECOND);
    // The run may end before the kernel gives up the struct.
    guest.watched.rig.engine.task_watch.miss_unseen();
    assert_eq!(guest.missed(), Some(1));
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Gone);
    assert_eq!(guest.missed(), Some(2));
}

/// The probe of the same process that a test adds.
const OTHER_MEMBER: &str = "watch:struct task_struct.exit_state@pid:7";

#[test]
fn process_that_is_there_is_watched_at_once() {
    let guest = Guest::new(&[], "wake_up_new_task");
    guest.boot();
    // Without a watchpoint, the kernel's functions have no plants.
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    guest.write(FIRST);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
}

#[test]
fn probe_added_between_the_list_and_the_start_of_a_task_arms_all() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OTHER_MEMBER);
    let armed = [ProbeState::Armed, ProbeState::Armed];
    assert_eq!(guest.watched.rig.states(), armed);
    guest.write(FIRST);
    guest.calls(guest.starts, FIRST);
    guest.write(FIRST);
    assert_eq!(guest.watched.writes(), [(0, 5), (5, 5)]);
    assert_eq!(guest.watched.rig.states(), armed);
}

#[test]
fn probe_added_behind_the_release_of_a_task_leaves_the_others_at_its_struct_until_its_end() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.link(&[]);
    guest.watched.register(OTHER_MEMBER);
    assert_eq!(guest.state(), ProbeState::Armed);
    guest.end(FIRST);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    let states = guest.watched.rig.states();
    assert_eq!(states, [ProbeState::Gone, ProbeState::Pending]);
}

#[test]
fn knob_forgets_tasks_that_have_gone_meanwhile() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    let rig = &guest.watched.rig;
    let set = |armed| rig.engine.set_armed(&rig.paused, armed).expect("set");
    set(false);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    guest.link(&[]);
    set(true);
    assert_eq!(guest.state(), ProbeState::Pending);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    set(false);
    // The process may come and go unseen.
    assert_eq!(guest.state(), ProbeState::Disabled);
    guest.number(SECOND, 7, 7);
    guest.link(&[SECOND]);
    set(true);
    assert_eq!(guest.state(), ProbeState::Armed);
}

#[test]
fn disabled_probe_stays_disabled_when_its_task_ends() {
    let guest = Guest::watching();
    let rig = &guest.watched.rig;
    let id = rig.engine.probes.list.load()[0].id;
    let set = |on| rig.engine.set_enabled(&rig.paused, id, on).expect("set");
    set(false);
    assert_eq!(guest.state(), ProbeState::Disabled);
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.calls(guest.starts, FIRST);
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Disabled);
    set(true);
    assert_eq!(guest.state(), ProbeState::Pending);
    let reason = guest.watched.rig.probe(0).reason.expect("a reason");
    assert!(
        reason.ends_with("since the watchpoint was enabled"),
        "{reason}"
    );
}

#[test]
fn failed_change_at_a_start_leaves_no_page_of_the_former_task_protected() {
    for request in 1..20 {
        let guest = Guest::watching();
        guest.number(FIRST, 7, 7);
        guest.link(&[FIRST]);
        assert!(guest.calls(guest.starts, FIRST));
        let other = FIRST + 0x1000;
        guest.number(other, 7, 7);
        let rig = &guest.watched.rig;
        let regs = vmm::kvm_regs {
            rdi: other,
            ..vmm::kvm_regs::default()
        };
        rig.paused.requests.fail(request);
        let started = rig.engine.task_watch.on_start(&rig.paused, &regs);
        rig.paused.requests.fail(0);
        started.expect("accessible");
        let protected = guest.watched.protected();
        match guest.state() {
            ProbeState::Armed => assert_eq!(protected, [other], "{request}"),
            _ => assert_eq!(protected, [] as [u64; 0], "{request}"),
        }
    }
}

#[test]
fn failed_change_leaves_no_page_of_an_ended_task_protected() {
    for request in 1..20 {
        let guest = Guest::watching();
        guest.number(FIRST, 7, 7);
        guest.link(&[FIRST]);
        assert!(guest.calls(guest.starts, FIRST));
        guest.link(&[]);
        let rig = &guest.watched.rig;
        let regs = vmm::kvm_regs {
            rdi: FIRST + RCU,
            ..vmm::kvm_regs::default()
        };
        rig.paused.requests.fail(request);
        let ended = rig.engine.task_watch.on_end(&rig.paused, &regs);
        rig.paused.requests.fail(0);
        ended.expect("accessible");
        assert_eq!(guest.watched.protected(), [] as [u64; 0], "{request}");
        assert_eq!(rig.engine.watches.table.load().watches().len(), 0);
    }
}

#[test]
fn list_that_cannot_be_read_is_a_miss() {
    let guest = Guest::new(&[], "wake_up_new_task");
    guest.boot();
    guest.put(SWAPPER + LINKS, 0x7fff_0000);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.missed(), Some(1));
    let notes = guest.watched.rig.notes();
    let is_told = |text: &str| text.starts_with("the guest's tasks cannot be read: ");
    assert!(notes.iter().any(|note| is_told(&note.text)), "{notes:?}");
}

#[test]
fn data_of_tasks_is_not_watched_if_hyprobe_cannot_see_them_start() {
    let guest = Guest::new(&[], "wake_up_old_task");
    guest.boot();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.state(), ProbeState::Refused);
    assert_eq!(guest.missed(), Some(1));
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
}

#[test]
fn task_without_memory_is_refused_and_the_next_is_watched() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    // The guest starts a false task at the end of memory: its flags are not in memory.
    let end = (2 << 20) - FLAGS;
    guest.number(end, 7, 7);
    assert!(guest.calls(guest.starts, end));
    assert_eq!(guest.state(), ProbeState::Refused);
    assert_eq!(guest.missed(), Some(1));
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.state(), ProbeState::Armed);
}
