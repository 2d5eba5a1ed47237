//! A run of k in a block: panels are packed, tiles of the result are made of them.

#![allow(unsafe_code)]

use super::kernel::{Kernel, Run, Tile};
use super::workspace::Workspace;

/// Makes a run.
///
/// # Safety
/// The processor has the instructions of `kernel`, and the pointers of `run` are right.
pub(super) unsafe fn run(workspace: &mut Workspace, kernel: &Kernel, run: &Run) {
    let (mr, nr) = (kernel.mr, kernel.nr);
    let (m, n, depth) = (run.rows, run.cols, run.depth.div_ceil(kernel.group));
    let mc = kernel.mc.min(m.next_multiple_of(mr));
    // Panels of the second factor are kept only where they are used again.
    let again = m > mc;
    let packed_b = workspace.b.get(depth * if again { n.next_multiple_of(nr) } else { nr }).as_mut_ptr();
    let packed_a = workspace.a.get(depth * mc).as_mut_ptr();
    // A half type that has all its sums in one run takes them tile by tile.
    let one_tile = run.half.is_some() && !run.accumulate;
    for i0 in (0..m).step_by(mc) {
        let i1 = (i0 + mc).min(m);
        for i in (i0..i1).step_by(mr) {
            // SAFETY: lines and depth are within the factor; panel i / mr has room for mr * depth numbers.
            unsafe { (kernel.pack_a)(run.a.at(i, 0), mr.min(i1 - i), run.depth, packed_a.add((i - i0) * depth)) };
        }
        for j in (0..n).step_by(nr) {
            // SAFETY: panel j / nr is within the packed ones.
            let panel = unsafe { packed_b.add(if again { j * depth } else { 0 }) };
            if i0 == 0 {
                // Packed when it is first used, while it is on its way through the caches.
                // SAFETY: lines and depth are within the factor; the panel has room for nr * depth numbers.
                unsafe { (kernel.pack_b)(run.b.at(j, 0), nr.min(n - j), run.depth, panel) };
            }
            for i in (i0..i1).step_by(mr) {
                // SAFETY: the panels were packed above; the tile is within the sums, and within the result.
                unsafe {
                    let (c, c_row) = if one_tile {
                        (run.sums, nr as isize)
                    } else {
                        (run.sums.offset(i as isize * run.sums_row + j as isize), run.sums_row)
                    };
                    let (rows, cols) = (mr.min(i1 - i), nr.min(n - j));
                    (kernel.tile)(&Tile {
                        a: packed_a.add((i - i0) * depth),
                        b: panel,
                        depth,
                        c,
                        c_row,
                        rows,
                        cols,
                        accumulate: run.accumulate,
                        scale: run.scale,
                        bias: run.bias.map_or(std::ptr::null(), |bias| bias.add(j)),
                    });
                    if let Some(half) = &run.half {
                        for r in 0..rows {
                            (kernel.round)(c.offset(r as isize * c_row), cols, half.at(i + r, j));
                        }
                    }
                }
            }
        }
    }
}
