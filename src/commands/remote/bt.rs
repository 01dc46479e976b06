//! `hyprobe bt`.

use control::StacksOf;
use control::api::ListedStack;

use super::debug_file::{frame_lines, print_notes};
use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::BtArgs;
use crate::exit::Exit;
use crate::report::{Progress, StackText};
use crate::source_lines::ModuleFetch;

/// Prints stacks of the guest's kernel and programs.
pub(crate) fn bt(args: &BtArgs) -> Result<Exit, RemoteError> {
    let of = match (args.tid, args.vcpu, args.all) {
        (Some(tid), _, _) => StacksOf::Task(tid),
        (_, Some(vcpu), _) => StacksOf::Vcpu(vcpu),
        (_, _, true) => StacksOf::All,
        _ => StacksOf::Vcpus,
    };
    let mut kernel = Viewed::open(&args.view.kernel)?;
    let progress = Progress::on_stderr();
    let show = progress.clone();
    let fetch = |fetch: ModuleFetch| fetch.with_progress(move |text| show.say(text));
    let mut lines = frame_lines(&args.debug_info, fetch, || kernel.identity())?;
    let mut stacks = kernel.stacks(of)?;
    if let Some(lines) = &mut lines {
        stacks
            .iter_mut()
            .for_each(|listed| lines.stack(&mut listed.stack));
        progress.clear();
        print_notes(lines);
    }
    print(&stacks, args.view.json, || text(&stacks))?;
    Ok(Exit::Done)
}

/// The stacks, with empty lines between them.
fn text(stacks: &[ListedStack]) -> String {
    let stacks = stacks.iter().map(|listed| {
        let text = StackText {
            vcpu: listed.vcpu,
            task: listed.task.as_ref(),
            state: listed.state,
            user_mode: listed.user_mode,
            frames: &listed.stack,
            incomplete: listed.stack_incomplete.as_deref(),
            program: listed.program_stack.as_deref().unwrap_or_default(),
            program_incomplete: listed.program_stack_incomplete.as_deref(),
        };
        text.lines()
    });
    stacks.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_have_headings_and_indented_frames() {
        let stacks = serde_json::json!([
            {
                "vcpu": 0, "task": { "pid": 1, "tid": 7, "comm": "a\nb" }, "user_mode": false,
                "stack": [
                    { "address": "0xffffffff81000005", "symbol": "vfs_read+0x5/0x1a0" },
                    { "address": "0xffffffffc0000000", "module": "tun" },
                ],
                "stack_incomplete": "the stack has more than 64 frames",
            },
            { "vcpu": 1, "user_mode": true, "stack": [] },
            { "task": { "pid": 9, "tid": 9, "comm": "z" }, "state": "Z", "user_mode": false, "stack": [] },
            {
                "task": { "pid": 5, "tid": 5, "comm": "cat" }, "state": "S", "user_mode": false,
                "stack": [{ "address": "0xffffffff81000005", "symbol": "vfs_read+0x5/0x1a0" }],
                "program_stack": [
                    { "address": "0x7f0000001014", "symbol": "read+0x14/0x90", "file": "/lib/libc.so.6", "offset": "0x1014" },
                    { "address": "0x401005", "file": "/bin/a\nb", "offset": "0x1005" },
                    { "address": "0x10" },
                ],
                "program_stack_incomplete": "no file is mapped at 0x10",
            },
        ]);
        let stacks: Vec<ListedStack> = serde_json::from_value(stacks).expect("stacks");
        let expected = "cpu0  a\\nb[7]
    vfs_read+0x5/0x1a0
    0xffffffffc0000000 [tun]
    … the stack has more than 64 frames

cpu1  in user mode

z[9]  Z

cat[5]  S
    vfs_read+0x5/0x1a0
    read+0x14/0x90 (/lib/libc.so.6)
    /bin/a\\nb+0x1005
    0x10
    … no file is mapped at 0x10
";
        assert_eq!(text(&stacks), expected);
    }
}
