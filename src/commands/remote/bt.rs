//! `hyprobe bt`.

use control::StacksOf;
use control::api::ListedStack;

use super::debug_file::frame_lines;
use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::BtArgs;
use crate::exit::Exit;
use crate::report::StackText;

/// Prints kernel stacks of the guest.
pub(crate) fn bt(args: &BtArgs) -> Result<Exit, RemoteError> {
    let of = match (args.tid, args.vcpu, args.all) {
        (Some(tid), _, _) => StacksOf::Task(tid),
        (_, Some(vcpu), _) => StacksOf::Vcpu(vcpu),
        (_, _, true) => StacksOf::All,
        _ => StacksOf::Vcpus,
    };
    let mut kernel = Viewed::open(&args.view.kernel)?;
    let mut lines = frame_lines(args.debug_info.as_deref(), || kernel.identity())?;
    let mut stacks = kernel.stacks(of)?;
    if let Some(lines) = &mut lines {
        stacks
            .iter_mut()
            .for_each(|listed| lines.stack(&mut listed.stack));
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
        ]);
        let stacks: Vec<ListedStack> = serde_json::from_value(stacks).expect("stacks");
        let expected = "cpu0  a\\nb[7]
    vfs_read+0x5/0x1a0
    0xffffffffc0000000 [tun]
    … the stack has more than 64 frames

cpu1  in user mode

z[9]  Z
";
        assert_eq!(text(&stacks), expected);
    }
}
